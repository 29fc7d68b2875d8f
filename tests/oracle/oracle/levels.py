"""Thresholds and levels of the codecs (docs/algorithm.md, 3.4), and a solver for them."""

import math

import numpy as np

from oracle.f32 import F32


def constants(text):
    return np.array([float(word) for word in text.split()], np.float64).astype(F32)


P_THRESHOLDS = constants(
    ".0852761589 .1716224345 .2602625195 .3527975458 .4516466673 .5611848547 .6920913648"
)
P_LEVELS = constants(
    ".0425086671 .1280436506 .2152012185 .3053238204 .4002712711 .5030220635 .6193476459"
    " .7648350837"
)
N4_THRESHOLDS = constants(
    ".2582216647 .5224037090 .7995497875 1.0992858269 1.4371387917 1.8435318063 2.4008033988"
)
N4_LEVELS = constants(
    ".1283950299 .3880482995 .6567591185 .9423404565 1.2562311973 1.6180463860 2.0690172265"
    " 2.7325895710"
)
N4_INTEGERS = np.array([11, 37, 61, 87, 117, 151, 193, 255], F32)
# Solved here (lloyd_max), to ten decimals; the text leaves these numbers to core/format/levels.h.
N5_THRESHOLDS = constants(
    ".1319707447 .2647150677 .3990389144 .5358165735 .6760346638 .8208504105 .9716742187"
    " 1.1302938503 1.2990723601 1.4812842091 1.6817306482 1.9079808085 2.1732339018"
    " 2.5044294908 2.9759260354"
)
N5_INTEGERS = np.array([5, 15, 25, 35, 45, 57, 67, 79, 91, 105, 119, 135, 153, 175, 203, 245], F32)
N2_THRESHOLDS = constants(".9815988216")
N2_LEVELS = constants(".4527800346 1.5104176085")


def gaussian_moments(low, high):
    """Mass and first moment of |t|, t ~ N(0,1), between low and high."""
    upper = 1.0 if math.isinf(high) else math.erf(high / math.sqrt(2))
    mass = upper - math.erf(low / math.sqrt(2))
    end = 0.0 if math.isinf(high) else math.exp(-high * high / 2)
    return mass, math.sqrt(2 / math.pi) * (math.exp(-low * low / 2) - end)


def sphere_moments(low, high):
    """The same for a coordinate on the unit sphere in 8 dimensions: density ~ (1 - t^2)^(5/2)."""
    high = min(high, 1.0)

    def integral(t):  # of cos^6
        a = math.asin(t)
        return (60 * a + 45 * math.sin(2 * a) + 9 * math.sin(4 * a) + math.sin(6 * a)) / 192

    moment = ((1 - low * low) ** 3.5 - (1 - high * high) ** 3.5) / 7
    return integral(high) - integral(low), moment


def lloyd_max(moments, count, top):
    """Levels and thresholds of the optimal quantiser with `count` magnitudes, by Newton's method on
    the centroid conditions, from equally spaced levels relaxed by Lloyd's iteration."""

    def centroids(levels):
        edges = [0.0, *((levels[:-1] + levels[1:]) / 2), math.inf]
        pairs = (moments(low, high) for low, high in zip(edges[:-1], edges[1:]))
        return np.array([moment / mass for mass, moment in pairs])

    levels = (np.arange(count) + 0.5) * top / count
    for _ in range(60):
        levels = centroids(levels)
    for _ in range(12):
        residual = centroids(levels) - levels
        jacobian = np.empty((count, count))
        for j in range(count):
            step = np.zeros(count)
            step[j] = 1e-5
            difference = centroids(levels + step) - centroids(levels - step)
            jacobian[:, j] = difference / 2e-5 - np.eye(count)[:, j]
        levels = levels - np.linalg.solve(jacobian, residual)
    return levels, (levels[:-1] + levels[1:]) / 2
