"""The command line of quality.py."""

from pathlib import Path

from bench.compare.options import check_output, number, numbers, parser_of
from bench.rules import presets, registry


def make_parser(about):
    parser = parser_of("bench.quality", about)
    parser.add_argument(
        "traces", nargs="*", metavar="TRACE", help=".safetensors (docs/cli.md), or a folder of them"
    )
    names = ", ".join(registry.RULES)
    parser.add_argument(
        "--methods",
        default=",".join(registry.RULES),
        help=f"commas between, parameters as in pqcache:m=16:bits=8; {names} (default all)",
    )

    parser.add_argument(
        "--preset",
        choices=presets.PRESETS,
        help="methods, k and budgets of docs/quality.md, instead of these options",
    )

    def add(name, kind, default, about):
        parser.add_argument(name, type=kind, default=default, help=about)

    add("--k", numbers(int, 1, 65536), [100], "rows of the zone per step, a list (default 100)")
    add(
        "--budget",
        numbers(int, 1, 4096),
        [],
        "bytes read per key to choose, a list: one more row for each rule that has such a knob",
    )
    add("--sink", number(int, 0, 1 << 30), 128, "first tokens, attended in full (default 128)")
    add("--local", number(int, 0, 1 << 30), 512, "last tokens, likewise (default 512)")
    add(
        "--fit-queries",
        number(int, 0, 1 << 30),
        64,
        "the first queries are the prefill's, the others judge (default 64)",
    )
    add("--seed", number(int, 0, 1 << 30), 0, "of what is random in a rule (default 0)")
    add("--jobs", number(int, 1, 1024), 1, "processes that share the settings (default 1)")
    about = "begin no further job after so many; what is left out is named (default: no end)"
    add("--minutes", number(float, 0, 1e6), 1e6, about)
    parser.add_argument("--json", metavar="FILE", help="the results as JSON, - for stdout")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    about = "the tables of results that were written, of several files as one"
    parser.add_argument("--show", nargs="+", metavar="FILE", help=about)
    return parser


def parse(argv, about):
    parser = make_parser(about)
    chosen = parser.parse_args(argv)
    if bool(chosen.show) == bool(chosen.traces):
        parser.error("accepted: TRACE.., or --show FILE..")
    if chosen.show and chosen.json:
        parser.error("--json: accepted with TRACE.., --show reads results")
    parts = [presets.Part(chosen.methods, chosen.k, chosen.budget)]
    if chosen.preset:
        parts = presets.PRESETS[chosen.preset]
    try:
        chosen.parts = [
            part._replace(methods=registry.parse_settings(part.methods)) for part in parts
        ]
        for part in chosen.parts:
            registry.check_options(part.methods)
    except registry.UsageError as error:
        parser.error(str(error))
    if chosen.json not in (None, "-"):
        check_output(parser, Path(chosen.json), chosen.force)
    return chosen
