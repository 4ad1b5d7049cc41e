"""Routes are found by path and method; the rest of a path may be a name."""

import pytest

from tests.fakes import FakeClient
from tests.srt.gateway.setup import error_of, in_process


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1//models", "/v1/models///"])
async def test_further_slashes_mean_nothing(path: str) -> None:
    async with in_process(FakeClient()) as http:
        assert (await http.get(path)).json()["object"] == "list"


@pytest.mark.parametrize("name", ["tiny", "tiny/", "/models/tiny.gguf", "%2Fmodels%2Ftiny.gguf"])
async def test_a_name_may_have_slashes(name: str) -> None:
    async with in_process(FakeClient()) as http:
        assert (await http.get(f"/v1/models/{name}")).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/modelss", "/Health", "/health%20", "*", "/ui/", "/v2/x"]
)
async def test_other_paths_are_404(path: str) -> None:
    async with in_process(FakeClient()) as http:
        answer = await http.get(path)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", "GET, OPTIONS"),
        ("/generate", "OPTIONS, POST, PUT"),
        ("/v1/responses/x", "DELETE, GET, OPTIONS, POST"),
    ],
)
async def test_the_methods_of_a_path_are_said(path: str, methods: str) -> None:
    async with in_process(FakeClient(), api_keys=("k",)) as http:
        wrong = await http.patch(path)
        asked = await http.options(path, headers={"authorization": "Bearer k"})
        assert (await http.options(path)).status_code == 401
    assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")
    assert (asked.status_code, asked.content) == (204, b"")
    assert wrong.headers["allow"] == asked.headers["allow"] == methods
