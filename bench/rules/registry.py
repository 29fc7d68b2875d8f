"""Names of rules, and settings such as `pqcache:m=16:bits=8`."""

import importlib.util
from dataclasses import dataclass

from bench.rules import (
    dense,
    eviction,
    graph,
    kivi,
    library,
    magicpig,
    pqcache,
    quest,
    rabitq,
    shadowkv,
)

RULES = {
    rule.NAME: rule
    for rule in (
        dense.Full,
        dense.Exact,
        dense.Streaming,
        quest.Quest,
        eviction.SnapKV,
        eviction.H2O,
        magicpig.MagicPIG,
        pqcache.PQCache,
        graph.Graph,
        shadowkv.ShadowKV,
        rabitq.RaBitQ,
        kivi.Kivi,
        library.Paper,
        library.Library,
    )
}


class UsageError(ValueError):
    pass


@dataclass
class Setting:
    method: str
    params: dict
    budget: "int | None" = None  # bytes per key, which chose the parameters

    @property
    def rule(self):
        return RULES[self.method]

    @property
    def label(self):
        if self.budget is not None:
            return f"{self.method}@{self.budget}"
        return ":".join([self.method, *(f"{name}={value}" for name, value in self.params.items())])


def number(text, kind, lowest, highest, label):
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not lowest <= value <= highest:
        raise UsageError(f"--methods {label}={text}, accepted: {lowest}..{highest}")
    return value


def parse_setting(text):
    method, *parts = text.split(":")
    if method not in RULES:
        raise UsageError(f"--methods {method}: accepted are {', '.join(RULES)}")
    known, params = RULES[method].PARAMS, {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name in params:
            raise UsageError(f"--methods {text}: {part!r}, accepted: NAME=VALUE, each name once")
        if known is None:
            params[name] = value
            continue
        if name not in known:
            accepted = ", ".join(known) or "none"
            raise UsageError(f"--methods {text}: no parameter {name!r}, accepted: {accepted}")
        default, lowest, highest = known[name]
        params[name] = number(value, type(default), lowest, highest, f"{method}:{name}")
    return Setting(method, params)


def parse_settings(text):
    settings = [parse_setting(part) for part in text.split(",")]
    labels = [setting.label for setting in settings]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"--methods {text}: {label} is given twice")
    return settings


def check_options(settings):
    """Options of the library by its own list, where it is there."""
    ours = [setting for setting in settings if setting.rule.PARAMS is None and setting.params]
    if not ours or missing(ours[0].rule):
        return
    import pariskv

    known = [option.name for option in pariskv.options()]
    for setting in ours:
        for name in setting.params:
            if name not in known:
                accepted = ", ".join(known)
                raise UsageError(
                    f"--methods {setting.label}: no option {name!r}, accepted: {accepted}"
                )


def with_budgets(settings, budgets, geometry):
    """Behind each setting without parameters, those that fit the budgets, if the rule has a
    knob."""
    result = []
    for setting in settings:
        result.append(setting)
        for budget in budgets if not setting.params else ():
            params = setting.rule.for_budget(budget, geometry)
            defaults = setting.rule.PARAMS or {}
            if params and any(defaults.get(name, [None])[0] != params[name] for name in params):
                result.append(Setting(setting.method, params, budget))
    return result


def missing(rule):
    """Why a rule cannot run here, or None."""
    if rule.LIBRARY is None:
        return None
    if importlib.util.find_spec(rule.LIBRARY) is None:
        return f"{rule.LIBRARY} is not installed (bench/requirements.txt)"
    if rule.LIBRARY == "pariskv":
        import pariskv

        try:
            pariskv.backends()
        except (OSError, RuntimeError) as error:
            return f"{error} (PARISKV_LIBRARY names the library)"
    return None
