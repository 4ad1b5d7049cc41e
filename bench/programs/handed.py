"""A long text that one call writes and the next one reads: how much of its prompt the second still
has to compute when the first has ended.

"left": prompt tokens of the second call that were not cached, the median.
"""

import argparse
import statistics

from bench.programs.clients import Caller, made
from bench.programs.pairs import Benches, Pair, row, timed
from bench.programs.workloads import handed_on

COLUMNS = ("work", "one by one s", "program s", "ratio", "left", "at most")
OUTPUTS = 600
MOST_LEFT = 64


async def handed(benches: Benches, args: argparse.Namespace) -> list[list[str]]:
    far, pairs, left = benches.far, [], []
    for number in range(far.num_pairs):
        load = handed_on(far.chunks(), args.handed_outputs, number)
        seconds = [0.0, 0.0]
        async with far.sessions(1) as (session,):
            for way in (number % 2, 1 - number % 2):
                await far.ready()
                if way:
                    seconds[way], answer = await timed(made(session, load))
                    meta = answer.vars[-1].meta
                    assert meta is not None
                    left.append(meta.prompt_tokens - meta.cached_tokens)
                else:
                    seconds[way], _ = await timed(Caller(far.http).run(load))
        pairs.append(Pair(*seconds))
    name = f"{args.handed_outputs} tokens, then 8"
    return [row(name, pairs, f"{statistics.median(left):g}", f"{MOST_LEFT}")]
