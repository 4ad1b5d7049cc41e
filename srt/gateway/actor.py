"""The gateway process: the HTTP application over a ring client. The ring sees one more client."""

import asyncio
import gc
import logging
import socket

from srt.answers.reasoning import has_reasoning
from srt.client.ring.client import RingClient
from srt.files.model_files import ModelFiles, fingerprint_of, resolve_model
from srt.files.sizes import resolved_activations
from srt.files.vocab import Vocab, served_vocab
from srt.gateway.app import app_of, gateway_over
from srt.gateway.context import Gateway, GatewayInfo
from srt.gateway.http.places import PROBE_PLACES
from srt.gateway.http.server import GatewayServer
from srt.gateway.limits.failed_keys import FailedKeys
from srt.gateway.limits.keys import KeyFiles
from srt.gateway.media.given import MediaRules
from srt.ring.actor import Actor
from srt.ring.listener import allow_connections
from srt.version import version_of

log = logging.getLogger(__name__)

KEY_INTERVAL_S = 1.0  # a changed file of keys is read within two of these


class GatewayActor(Actor):
    """Serves HTTP. Its client fails requests by itself when the ring breaks."""

    name = "gateway"
    _server: GatewayServer | None = None

    async def start(self) -> None:
        url = f"ipc://{self.ring.directory}"
        self._client = RingClient(url, self.dropped, self._on_failure)
        await self._client.start()
        files = resolve_model(self.args.model, self.args.tokenizer)
        vocab = served_vocab(self.args)
        facts, programs = self._facts(files, vocab), self._client.programs
        gateway = gateway_over(self._client, facts, vocab, programs)
        key_files = KeyFiles(self.args, self.ring.read_page_key())
        gateway.keys = key_files.keys
        gateway.failed_keys = FailedKeys(self.args.max_connections)
        self.background(_watch_keys(gateway, key_files))
        allow_connections(self.args.max_connections + PROBE_PLACES)
        listener = socket.socket(fileno=int(self.arguments[0]))
        self._server = GatewayServer(
            app_of(gateway),
            listener,
            max_connections=self.args.max_connections,
            proxies=self.args.proxy_networks(),
        )
        await self._server.start()
        gc.freeze()  # later collections look only at objects made since, and hold the loop for less

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
        await self._client.close()

    @property
    def in_flight(self) -> int:
        """In a drain, answers that have not left: one that is complete may still wait for a slow
        reader."""
        return self._server.num_answering if self._server and self.is_draining else 0

    def new_epoch(self) -> None:
        pass  # the client has received it too

    def _facts(self, files: ModelFiles, vocab: Vocab) -> GatewayInfo:
        activations = resolved_activations(self.args.activations, files)
        sampling = vocab.sampling.under(self.args.sampling_defaults)
        return GatewayInfo(
            model_name=self.args.model_name,
            model_names=self.args.model_names,
            min_body_rate=self.args.min_body_rate,
            response_store_bytes=self.args.response_store_mib * 2**20,
            model_path=str(files.path),
            tokenizer_path=str(files.text_path),
            activations=activations,
            fingerprint=fingerprint_of(files, activations, sampling.defaults),
            context_len=vocab.context_len,
            max_total_tokens=self.args.pool_tokens or vocab.context_len,
            version=version_of(),
            reasoning=has_reasoning(self.args.reasoning_parser, vocab.chat_template),
            stream_interval=self.args.stream_interval,
            max_requests=self.args.max_queued_requests,
            cors_origins=self.args.cors_origins(),
            allowed_hosts=self.args.host_names(),
            has_page=not self.args.no_ui,
            unknown_fields=self.args.unknown_fields,
            strict_model=self.args.strict_model,
            sampling=sampling,
            media=MediaRules(limit=self.args.limit_media, domains=self.args.media_domains()),
            server_args=self.args.public(),
        )


async def _watch_keys(gateway: Gateway, files: KeyFiles) -> None:
    while True:
        await asyncio.sleep(KEY_INTERVAL_S)
        if files.have_changed():
            gateway.keys = files.keys
            gateway.feed.end_pages()  # whose key may be gone; the others come again
            log.info("the API keys have been read again")
