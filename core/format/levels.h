// Quantiser tables of the codecs. docs/algorithm.md, section 3.4.
// Thresholds and levels are the Lloyd-Max points of |t|: Polar for a coordinate of a unit vector in
// 8 dimensions (t^2 ~ Beta(1/2, 7/2)), Normal for t ~ N(0, 1). Ten decimals, rounded once to fp32.
// tools/level_solver.py computes them; `--check` holds this file against it.
// The integers stand for the Normal levels, docs/decisions/0003-integer-levels.md says why: odd, at
// most 255, any common unit, since the factor of a key absorbs it.
#pragma once

#include <cstdint>

namespace pkv::format {

// 3-bit codes of polar4.
inline constexpr float kPolarThresholds[7] = {0.0852761589F, 0.1716224345F, 0.2602625195F,
                                              0.3527975458F, 0.4516466673F, 0.5611848547F,
                                              0.6920913648F};
inline constexpr float kPolarLevels[8] = {0.0425086671F, 0.1280436506F, 0.2152012185F,
                                          0.3053238204F, 0.4002712711F, 0.5030220635F,
                                          0.6193476459F, 0.7648350837F};

// 3-bit codes of scalar4 and of the value sketch with sketch_bits = 4.
inline constexpr float kNormal4Thresholds[7] = {0.2582216647F, 0.5224037090F, 0.7995497875F,
                                                1.0992858269F, 1.4371387917F, 1.8435318063F,
                                                2.4008033988F};
inline constexpr double kNormal4Levels[8] = {0.1283950299, 0.3880482995, 0.6567591185,
                                             0.9423404565, 1.2562311973, 1.6180463860,
                                             2.0690172265, 2.7325895710};
inline constexpr int32_t kScalar4Levels[8] = {11, 37, 61, 87, 117, 151, 193, 255};

// 4-bit codes of scalar5. The integers are, of all odd ones up to 255, those with the least squared
// distance from the levels, each weighted by its probability; their unit is about 1/75.4.
inline constexpr float kNormal5Thresholds[15] = {
    0.1319707447F, 0.2647150677F, 0.3990389144F, 0.5358165735F, 0.6760346638F,
    0.8208504105F, 0.9716742187F, 1.1302938503F, 1.2990723601F, 1.4812842091F,
    1.6817306482F, 1.9079808085F, 2.1732339018F, 2.5044294908F, 2.9759260354F};
inline constexpr double kNormal5Levels[16] = {
    0.0658896598, 0.1980518297, 0.3313783058, 0.4666995230, 0.6049336240, 0.7471357037,
    0.8945651174, 1.0487833199, 1.2118043806, 1.3863403396, 1.5762280786, 1.7872332177,
    2.0287283994, 2.3177394042, 2.6911195774, 3.2607324934};
inline constexpr int32_t kScalar5Levels[16] = {5,  15,  25,  35,  45,  57,  67,  79,
                                               91, 105, 119, 135, 153, 175, 203, 245};

// 1-bit codes of the value sketch with sketch_bits = 2.
inline constexpr float kNormal2Threshold = 0.9815988216F;
inline constexpr float kNormal2Levels[2] = {0.4527800346F, 1.5104176085F};

}  // namespace pkv::format
