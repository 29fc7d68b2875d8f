"""Tasks of long contexts under a real model: full attention beside pariskv's profiles, one prefill
for all of them. `python -m bench.tasks --help`; docs/tasks.md."""
