"""The gateway process: the HTTP application over a ring client. The ring sees one more client."""

import socket
from importlib.metadata import PackageNotFoundError, version

from srt.actor import Actor
from srt.gateway.app import create_app
from srt.gateway.context import GatewayInfo
from srt.gateway.server import GatewayServer
from srt.model.files import resolve_model
from srt.model.vocab import load_vocab
from srt.reasoning import has_reasoning
from srt.ring_client import RingClient


class GatewayActor(Actor):
    """Serves HTTP. Its client fails requests by itself when the ring breaks."""

    name = "gateway"
    niceness = 5

    async def start(self) -> None:
        self._client = RingClient(f"ipc://{self.ring.directory}")
        await self._client.start()
        app = create_app(self._client, self._facts())
        listener = socket.socket(fileno=int(self.arguments[0]))
        self._server = GatewayServer(app, sock=listener)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
        await self._client.close()

    def new_epoch(self, epoch: int) -> None:
        pass  # the client has heard it too

    def _facts(self) -> GatewayInfo:
        files = resolve_model(self.args.model)
        vocab = load_vocab(files)
        return GatewayInfo(
            model_name=self.args.model_name,
            model_path=str(files.path),
            context_len=vocab.context_len,
            max_total_tokens=self.args.max_total_tokens,
            version=_version(),
            api_key=self.args.api_key or None,
            reasoning=has_reasoning(self.args.reasoning_parser, vocab.chat_template),
            server_args=self.args.public(),
        )


def _version() -> str:
    try:
        return version("srt-lang")
    except PackageNotFoundError:
        return "0+unknown"
