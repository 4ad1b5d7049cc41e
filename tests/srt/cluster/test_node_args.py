"""What a head tells a node of its arguments."""

import pytest

from srt.args import ServerArgs, places_of
from srt.cluster.node_args import node_args, told_options
from srt.wire.errors import ConfigError

HEAD = ServerArgs(
    dp=0,
    remote_replicas=5,
    cluster_insecure=True,
    api_key="secret",
    admin_api_key="secret",
    quantization="q8",
    max_running_requests=9,
    chosen_sizes=("max_running_requests",),
)


def test_no_key_is_told_and_a_node_has_sizes_of_its_own() -> None:
    told = told_options(HEAD)
    assert "secret" not in repr(told) and "host" not in told and "ring_dir" not in told
    args, plan = node_args(told, 5, 2, {"threads": 3})
    assert (args.dp, places_of(args), args.threads, args.quantization) == (2, 5, 3, "q8")
    assert plan is not None and args.max_total_tokens == plan.pool_tokens > 0
    assert args.max_running_requests == 9 and not args.api_keys()
    chosen, _ = node_args(told | {"max_total_tokens": 4096}, 5, 1, {})
    assert chosen.max_total_tokens == 4096


def test_what_this_version_does_not_know_is_left_out_or_refused() -> None:
    told = told_options(HEAD)
    assert node_args(told | {"of_the_future": 1, "api_key": "x"}, 5, 1, {})[0].api_key == ""
    with pytest.raises(ConfigError, match="not understood"):
        node_args(told | {"quantization": 3}, 5, 1, {})
    with pytest.raises(ConfigError, match="--replicas 6: the ring of the head has 5"):
        node_args(told, 5, 6, {})
