"""What the compiler made of loops that the kernels' speed depends on.

The sums of attention over integers stay in registers: g++ 12 once stored each of the 24 sums of a
tile in every round of its loop, which took more time than the products.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from scheduler_proc.kernels.build import LIBRARY, is_x86
from tests.running.profiles import some

# By level: what multiplies words there, and how many times in a round of its largest tile.
PRODUCTS = {"avx512": ("vpdpwssd", 24), "avx2": ("vpmaddwd", 12)}
OWNER = "WordView"  # in the (mangled) names of the functions that hold such loops

# In AT&T's syntax, where the destination comes last.
_FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\s+(\S+) *(.*)")
_VECTOR_STORE = re.compile(r"%[xyz]mm\d+,.*\)")

LOOP = """
0000000000000100 <name>:
     100:	xor    %eax,%eax
     110:	vpbroadcastd (%rdx),%zmm0
     114:	vpdpwssd %zmm1,%zmm0,%zmm2
     118:	vmovdqa64 %zmm2,{destination}
     120:	inc    %eax
     122:	jne    110 <name+0x10>
     124:	vmovdqa64 %zmm2,0x40(%rsp)
     128:	jmp    100 <name>
"""


class Instruction(NamedTuple):
    """One line of a disassembly."""

    address: int
    mnemonic: str
    operands: str

    @property
    def target(self) -> int | None:
        """The address that a jump goes to."""
        if not self.mnemonic.startswith("j"):
            return None
        address = re.match(r"[0-9a-f]+", self.operands)
        return int(address[0], 16) if address else None

    @property
    def is_vector_store(self) -> bool:
        return self.mnemonic.startswith("vmov") and bool(_VECTOR_STORE.match(self.operands))


class Loop(NamedTuple):
    """A loop that holds no other: its function's name, its instructions."""

    function: str
    instructions: list[Instruction]

    def count(self, mnemonic: str) -> int:
        return sum(each.mnemonic == mnemonic for each in self.instructions)

    def stores(self) -> list[str]:
        return [each.operands for each in self.instructions if each.is_vector_store]


def functions(lines: Iterable[str]) -> Iterator[tuple[str, list[Instruction]]]:
    """Names and instructions of the functions of `objdump -d --no-show-raw-insn`."""
    name, instructions = "", list[Instruction]()
    for line in lines:
        if found := _FUNCTION.match(line):
            yield name, instructions
            name, instructions = found[1], []
        elif found := _INSTRUCTION.match(line):
            instructions.append(Instruction(int(found[1], 16), found[2], found[3]))
    yield name, instructions


def loops(name: str, instructions: list[Instruction]) -> list[Loop]:
    """Those without another inside: from the target of a jump back to the jump."""
    at = {each.address: i for i, each in enumerate(instructions)}
    targets = [(at.get(each.target or -1), i) for i, each in enumerate(instructions)]
    spans = [(first, last) for first, last in targets if first is not None and first <= last]
    return [
        Loop(name, instructions[first : last + 1])
        for first, last in spans
        if not any(
            (first, last) != other and first <= other[0] and other[1] <= last for other in spans
        )
    ]


def loops_of_products(isa: str) -> list[Loop]:
    """The library's innermost loops that multiply words for attention at a level."""
    if not shutil.which("objdump"):
        pytest.skip("no objdump")
    command = ["objdump", "-d", "--no-show-raw-insn", str(LIBRARY)]
    listing = subprocess.check_output(command, text=True)
    return [
        loop
        for name, instructions in functions(listing.splitlines())
        if isa in name and OWNER in name
        for loop in loops(name, instructions)
        if loop.count(PRODUCTS[isa][0])
    ]


@pytest.mark.skipif(not is_x86(), reason="the library has no such level")
@pytest.mark.parametrize("isa", some(PRODUCTS))
def test_sums_of_words_stay_in_registers(isa: str) -> None:
    found = loops_of_products(isa)
    mnemonic, tile = PRODUCTS[isa]
    assert max(loop.count(mnemonic) for loop in found) >= tile
    assert {loop.function: stored for loop in found if (stored := loop.stores())} == {}


@pytest.mark.parametrize(
    ("destination", "stores"),
    [("0x40(%rsp)", ["%zmm2,0x40(%rsp)"]), ("-0x8(%rax,%rcx,4)", ["%zmm2,-0x8(%rax,%rcx,4)"])],
)
def test_a_store_in_a_loop_is_found(destination: str, stores: list[str]) -> None:
    (found,) = _loops_of(LOOP.format(destination=destination))
    assert (found.count("vpdpwssd"), found.stores()) == (1, stores)


def test_loads_copies_and_stores_after_the_loop_are_none() -> None:
    (found,) = _loops_of(LOOP.format(destination="%zmm3"))
    assert found.stores() == []


def _loops_of(listing: str) -> list[Loop]:
    return [loop for each in functions(listing.splitlines()) for loop in loops(*each)]
