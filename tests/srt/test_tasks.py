"""Several calls at once, and tasks that start late."""

import asyncio

import pytest

from srt.tasks import TaskSet, all_of

FOREVER = 3600


async def fails() -> None:
    raise ZeroDivisionError


async def test_the_first_failure_ends_the_others() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.sleep(FOREVER)
        finally:
            await asyncio.sleep(0)  # as a call does that cleans up
            ended.append(True)

    with pytest.raises(ZeroDivisionError):
        await all_of([waits(), fails(), waits()])
    assert ended == [True, True]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_second_cancel_does_not_interrupt_what_a_call_closes(count: int) -> None:
    closing, closed, may_close = [], [], asyncio.Event()

    async def closes_off() -> None:
        try:
            await asyncio.sleep(FOREVER)
        finally:
            closing.append(True)
            await may_close.wait()
            closed.append(True)

    calls = all_of([closes_off() for _ in range(count)])
    task: asyncio.Task[object] = asyncio.ensure_future(calls)
    for _ in range(2):
        await asyncio.sleep(0.001)
        task.cancel()
    await asyncio.sleep(0.001)
    assert len(closing) == count
    may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(closed) == count


async def test_a_failure_is_told_and_the_others_go_on() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(failures.append)
    beside = tasks.start(asyncio.sleep(FOREVER))
    tasks.start(fails())
    await tasks.one_ends()
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    assert len(tasks) == 1 and not beside.done()
    await tasks.close()


async def test_one_that_is_cancelled_alone_is_no_failure() -> None:
    failures: list[BaseException] = []
    tasks = TaskSet(failures.append)
    tasks.start(asyncio.sleep(FOREVER)).cancel()
    await tasks.one_ends()
    assert len(tasks) == 0 and failures == []


async def test_closing_waits_for_all_and_cancels_each_once() -> None:
    ended = []

    async def closes_off() -> None:
        try:
            await asyncio.sleep(FOREVER)
        finally:
            tasks.start(starts_late())
            await asyncio.sleep(0.001)  # a second cancel would interrupt this
            ended.append("first")

    async def starts_late() -> None:
        try:
            await asyncio.sleep(FOREVER)
        finally:
            ended.append("late")

    tasks = TaskSet(lambda error: pytest.fail(str(error)))
    tasks.start(closes_off())
    await asyncio.sleep(0)
    await tasks.close()
    assert sorted(ended) == ["first", "late"] and len(tasks) == 0
