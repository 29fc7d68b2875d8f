"""The command line of quality.py."""

from pathlib import Path

from bench.compare.options import check_output, number, numbers, parser_of
from bench.rules import registry


def make_parser(about):
    parser = parser_of("bench.quality", about)
    parser.add_argument("traces", nargs="*", metavar="TRACE", help=".safetensors (docs/cli.md)")
    names = ", ".join(registry.RULES)
    parser.add_argument(
        "--methods",
        default=",".join(registry.RULES),
        help=f"commas between, parameters as in pqcache:m=16:bits=8; {names} (default all)",
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
    try:
        chosen.settings = registry.parse_settings(chosen.methods)
        registry.check_options(chosen.settings)
    except registry.UsageError as error:
        parser.error(str(error))
    if chosen.json not in (None, "-"):
        check_output(parser, Path(chosen.json), chosen.force)
    return chosen
