"""A progress bar: one line on stderr that counts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


def progress_bar(total: int, unit: str, *, shown: bool) -> "tqdm[Any]":
    """Counts to `total` by `update`, in `with`; `unit` is what is counted. Says nothing unless it
    is `shown`."""
    from tqdm import tqdm  # imported for those alone who run a batch

    form = "{n_fmt}/{total_fmt} {unit}, {rate_noinv_fmt}"
    return tqdm(total=total, unit=unit, bar_format=form, disable=not (shown and total))
