"""The limits of a class: MAX_METHODS public methods, properties included, and MAX_ATTRIBUTES
attributes of an instance, private ones included. A class above them has more than one meaning.

The rule. Methods count in every class, the inherited ones aside. Attributes count in classes with
state: those that a method assigns to `self`, and the fields of a dataclass that has methods and is
not frozen. The fields of plain records do not count, since what they describe has as many: structs,
named tuples, typed dicts, enums, frozen dataclasses, and dataclasses without methods.

`tests/test_architecture.py` compares the source with the table.
"""

import ast
from collections.abc import Iterator, Mapping

MAX_METHODS = 12
MAX_ATTRIBUTES = 10

_RECORDS = {"Struct", "NamedTuple", "TypedDict", "Enum", "IntEnum", "StrEnum"}

# class -> its public methods and its attributes. There are no new entries, and numbers only shrink:
# an entry that is larger than its class fails too.
EXCEPTIONS: dict[str, tuple[int, int]] = {
    "detokenizer_proc.request.Request": (11, 15),
    "lang.backends.runtime.RuntimeEndpoint": (13, 7),
    "lang.logs.reports.sender.Sender": (4, 17),
    "lang.remote.session.ProgramVar": (14, 3),
    "lang.remote.session.Session": (10, 13),
    "lang.run.program.Program": (13, 19),
    "lang.run.worker.Worker": (11, 11),
    "lang.state.refs.Ref": (13, 0),
    "lang.state.state.ProgramState": (21, 3),
    "scheduler_proc.actor.SchedulerActor": (6, 22),
    "scheduler_proc.attention.flashinfer.FlashInferAttention": (3, 13),
    "scheduler_proc.batch.ForwardBatch": (3, 17),
    "scheduler_proc.core.counters.Counters": (1, 19),
    "scheduler_proc.core.requests.allocations.ReqMemory": (13, 6),
    "scheduler_proc.core.requests.request.Req": (18, 21),
    "scheduler_proc.core.scheduler.Scheduler": (25, 8),
    "scheduler_proc.core.steps.step.Row": (4, 16),
    "scheduler_proc.crash.journal.Blame": (11, 12),
    "scheduler_proc.events.kv_events.KvEvents": (3, 11),
    "scheduler_proc.executor.native_executor.NativeExecutor": (7, 11),
    "scheduler_proc.executor.torch_executor.TorchExecutor": (13, 15),
    "scheduler_proc.grammar.base.Grammar": (15, 0),
    "scheduler_proc.grammar.closing.chain.Closing": (4, 11),
    "scheduler_proc.grammar.fsm.grammar.FsmGrammar": (16, 22),
    "scheduler_proc.grammar.fsm.grammar.FsmPosition": (15, 2),
    "scheduler_proc.grammar.schema.keywords.Keywords": (24, 4),
    "scheduler_proc.grammar.store.GrammarStore": (10, 12),
    "scheduler_proc.grammar.worker.service.CompileService": (7, 11),
    "scheduler_proc.grammar.wrapped.WrappedGrammar": (15, 1),
    "scheduler_proc.media.encoder_cache.EncoderCache": (16, 16),
    "scheduler_proc.memory.radix_cache.RadixCache": (14, 14),
    "scheduler_proc.process.compute.ComputeThread": (9, 12),
    "scheduler_proc.sampling.penalties.LogitChanges": (7, 16),
    "scheduler_proc.trace.recorded.RecordedScheduler": (20, 3),
    "srt.answers.tool_calls.CallReader": (1, 13),
    "srt.client.face.AsyncClient": (13, 1),
    "srt.client.ring.generation.RingGeneration": (7, 17),
    "srt.client.ring.link.RingLink": (11, 17),
    "srt.files.control_tokens.ControlTokens": (4, 11),
    "srt.files.gguf_tokens.GGUFTokens": (6, 12),
    "srt.gateway.introspection.feed.Feed": (4, 14),
    "srt.patterns.read_ecma._EcmaParser": (19, 2),
    "srt.patterns.stops.StopNFA": (5, 11),
    "srt.programs.core.Core": (12, 14),
    "srt.programs.parts.Variable": (3, 15),
    "srt.programs.parts.Work": (2, 11),
    "srt.ring.actor.Actor": (16, 15),
    "srt.ring.child.Child": (2, 13),
    "srt.ring.places.Ring": (17, 0),
    "srt.ring.supervisor.Supervisor": (7, 20),
}


def class_sizes(module: str, tree: ast.Module) -> Iterator[tuple[str, tuple[int, int]]]:
    """Public methods and attributes of the classes of a module, by their full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield f"{module}.{node.name}", (_num_methods(node), _num_attributes(node))


def above_limits(trees: Mapping[str, ast.Module]) -> dict[str, tuple[int, int]]:
    """The sizes of those classes of modules, which are given by their full names, that exceed a
    limit."""
    sizes = (size for module, tree in trees.items() for size in class_sizes(module, tree))
    return {name: size for name, size in sizes if _is_above(*size)}


def _is_above(num_methods: int, num_attributes: int) -> bool:
    return num_methods > MAX_METHODS or num_attributes > MAX_ATTRIBUTES


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)]


def _num_methods(node: ast.ClassDef) -> int:
    return len({method.name for method in _methods(node) if not method.name.startswith("_")})


def _num_attributes(node: ast.ClassDef) -> int:
    if {_name(base) for base in node.bases} & _RECORDS:
        return 0
    attributes = {name for method in _methods(node) for name in _assigned(method)}
    if _is_dataclass_with_state(node):
        attributes |= {ast.unparse(f.target) for f in node.body if isinstance(f, ast.AnnAssign)}
    return len(attributes)


def _is_dataclass_with_state(node: ast.ClassDef) -> bool:
    """Whether it is a dataclass with methods that is not frozen."""
    decorators = [d for d in node.decorator_list if _name(d) == "dataclass"]
    is_frozen = any("frozen=True" in ast.unparse(decorator) for decorator in decorators)
    return bool(decorators) and not is_frozen and bool(_methods(node))


def _assigned(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The names of the attributes of `self` that a method assigns."""
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


def _name(node: ast.expr) -> str:
    """The last name of a base or decorator, such as `Struct` of `msgspec.Struct` or
    `Generic` of `Generic[T]`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)
