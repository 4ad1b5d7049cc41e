"""`Graph`: a recorded function with what is known of it before it runs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from lang.graph import passes
from lang.graph.drawing import svg_of
from lang.graph.nodes import MODEL_CALLS, Node, nodes_of
from lang.graph.ops import Recorded
from lang.run.ir import Part
from lang.state.control import Unordered


class Report(Struct, frozen=True):
    """What a graph consists of, and what its passes have found.

    `levels` calls of the model are one after the other, on the longest way. `prefix_chars` begin
    every prompt. Of the beginnings of a batch's prompts, as far as the arguments tell, `num_chars`,
    `shareable_before` are those of another row too, in the order in which unordered pieces are
    written, and `shareable` in that of a compiled batch, `orders`.
    """

    calls: Mapping[str, int]
    num_nodes: int
    levels: int
    dropped: Sequence[str]
    equal: Sequence[tuple[str, str]]
    prefix_chars: int
    stopped: str
    num_chars: int = 0
    shareable_before: int = 0
    shareable: int = 0
    orders: Sequence[Sequence[str]] = ()

    def __str__(self) -> str:
        calls = ", ".join(f"{count} {kind}" for kind, count in sorted(self.calls.items()))
        lines = [f"{self.num_nodes} nodes; calls: {calls or 'none'}; {self.levels} one by one"]
        lines.append(f"constant prefix: {self.prefix_chars} characters")
        lines += [f"dropped: {label}" for label in self.dropped]
        lines += [f"equal: {label} and {other}" for label, other in self.equal]
        if self.num_chars:
            shares = [self.shareable_before / self.num_chars, self.shareable / self.num_chars]
            lines.append(
                f"of {self.num_chars} characters, {shares[0]:.1%} are shareable as written, "
                f"{shares[1]:.1%} as ordered"
            )
            lines += [f"order: {', '.join(order)}" for order in self.orders]
        if self.stopped:
            lines.append(f"interpreted from here: {self.stopped}")
        return "\n".join(lines)


class Graph:
    """What a function does to its states, recorded once.

    `stopped` says where recording ended because the function looked at what only a run knows; empty
    if it was recorded whole. Dead nodes, whose text and variables reach no output, are left out
    of runs, unless `keep`; `outputs` are the variables that are wanted, None all of the function's
    own state, and its text.
    """

    def __init__(
        self, name: str, recorded: Recorded, outputs: Collection[str] | None, *, keep: bool
    ) -> None:
        self.name, self.recorded = name, recorded
        self.stopped = recorded.stopped
        is_whole = not (keep or recorded.stopped)
        self._dead = passes.dead(recorded, outputs) if is_whole else []
        self.dropped = frozenset(map(id, self._dead))

    @property
    def nodes(self) -> list[Node]:
        """The nodes, in the order of the source."""
        return nodes_of(self.recorded, self.dropped)

    def orders(self, rows: Sequence[Mapping[str, Any]]) -> dict[int, Unordered]:
        """How a batch of these rows has its unordered pieces: parts by the ids of their steps."""
        return passes.orders_of(self.recorded, rows)

    def row_order(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """The rows' numbers so that those with common beginnings follow each other: depth first in
        the tree of their prompts, as far as the arguments tell."""
        replaced = self.orders(rows)
        keys = [passes.leading_text(self.recorded, row, replaced) for row in rows]
        return sorted(range(len(rows)), key=lambda i: (keys[i], i))

    def constant_parts(self) -> list[Part]:
        """What every prompt of the function's own state begins with."""
        return passes.constant_parts(self.recorded)

    def report(self, rows: Sequence[Mapping[str, Any]] | None = None) -> Report:
        """What it consists of; with the arguments of a batch, how much of its prompts is shared."""
        nodes = self.nodes
        labels = {node.id: f"{node.kind} {node.label!r}" for node in nodes}
        calls = [node for node in nodes if node.kind in MODEL_CALLS]
        prefix = "".join(part for part in self.constant_parts() if isinstance(part, str))
        made = Report(
            Counter(node.kind for node in calls),
            len(nodes),
            max((node.level + 1 for node in calls if not node.is_dead), default=0),
            [labels[node.id] for node in calls if node.is_dead],
            [(labels[node.id], labels[node.same_as]) for node in nodes if node.same_as is not None],
            len(prefix),
            self.stopped,
        )
        return made if rows is None else self._of_batch(made, rows)

    def _of_batch(self, report: Report, rows: Sequence[Mapping[str, Any]]) -> Report:
        replaced = self.orders(rows)
        written = ["".join(passes.leading_text(self.recorded, row, {})) for row in rows]
        ordered = ["".join(passes.leading_text(self.recorded, row, replaced)) for row in rows]
        return structs.replace(
            report,
            num_chars=sum(map(len, written)),
            shareable_before=passes.shareable(written),
            shareable=passes.shareable(ordered),
            orders=[part.order for part in replaced.values()],
        )

    def svg(self) -> str:
        """The graph as a drawing: states side by side, calls from the top to the bottom."""
        return svg_of(self.nodes, self.name)

    def _repr_html_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        lines = [f"{self.name}:"]
        for node in self.nodes:
            notes = [f"of {', '.join(f'#{i}' for i in node.inputs)}"] if node.inputs else []
            notes += [f"equal to #{node.same_as}"] if node.same_as is not None else []
            notes += ["dead"] if node.is_dead else []
            note = f"  ({'; '.join(notes)})" if notes else ""
            label = repr(node.label[:60])
            lines.append(
                f"  #{node.id} state {node.state} level {node.level} {node.kind} {label}{note}"
            )
        if self.stopped:
            lines.append(f"  interpreted from here: {self.stopped}")
        return "\n".join(lines)
