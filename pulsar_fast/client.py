"""The synchronous client."""

import logging
import ssl
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ._core import fork_count
from .authentication import Authentication
from .client_core import ClientCore
from .enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProxyProtocol,
)
from .loop_thread import LoopThread, on_loop
from .message_routing import Message
from .options import ClientOptions, ProducerOptions
from .producer import EncodingProducer, Producer, ThreadSender
from .service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from .service_source import ServiceSource
from .topic_name import TopicName

__all__ = ["Client"]


class Client:
    """A connection to a Pulsar cluster, for producing. As a context manager it closes itself.

    service_url: `pulsar://host[:port][,host[:port]...]`; IPv6 literals in brackets, port 6650 by default. With
        `pulsar+ssl://` over TLS, port 6651 by default; with `http://` (8080 by default) or `https://` (8443) topics
        are looked up over HTTP, and the brokers' binary ports used then, with `https://` those for TLS. Or
        an `AutoClusterFailover` or a `ServiceInfoProvider`, which name clusters by `ServiceInfo`, with their
        `authentication` and `tls_trust_certs_file_path`.
    operation_timeout_seconds: creating a producer, look-ups, closing. Default 30.
    connection_timeout_ms: name resolution, TCP and handshake of one connection. Default 10000.
    keep_alive_interval_seconds: between pings; a broker silent for two of them is given up. Default 30.
    logger: a `logging.Logger`; default the one named `pulsar_fast`.
    memory_limit_bytes: bytes of all messages without an answer; 0 for no limit. Default 64 MiB.
    listener_name: which advertised listener of the brokers to use.
    initial_backoff_interval_ms, max_backoff_interval_ms: between attempts to reconnect. Defaults 100 and 10000.
    connections_per_broker: among which the producers are divided; each stays with its own. Default 1.
    connection_max_idle_seconds: a connection without producers and requests for so long is closed, at most a
        quarter later; None for never. Default 60.
    description: of the client, shown by brokers behind its version; at most 64 characters.
    concurrent_lookup_requests: look-ups under way; further ones wait. Default 50000.
    stats_interval_in_seconds: the counters of each producer go to the log so often, at level INFO. Default 600; 0
        for never.
    use_tls: TLS to brokers also with `pulsar://` and `http://`. Default False.
    tls_trust_certs_file_path: PEM file of the CAs to trust. Default the system's, else those of `certifi`.
    tls_allow_insecure_connection: accept any certificate of a broker. Default False.
    tls_validate_hostname: refuse a certificate that is not for the host that is dialled. Default True.
    tls_certificate_file_path, tls_private_key_file_path: PEM files of this client's certificate and key (not
        encrypted), read again for each connection.
    ssl_context: an `ssl.SSLContext` to be used as it is, instead of the `tls_` options.
    tls_minimum_version: the oldest `ssl.TLSVersion` to speak, TLSv1_2 or TLSv1_3. Default TLSv1_2.
    tls_ciphers: an OpenSSL list of the ciphers to offer for TLS 1.2; those of TLS 1.3 are not affected. Default
        Python's.
    proxy_service_url, proxy_protocol: `pulsar+ssl://host:port` of a proxy that passes TLS on to the broker of the name
        in its SNI, and `ProxyProtocol.SNI`: every connection dials that proxy, and verifies the broker. Needs TLS,
        look-ups over the binary protocol, and brokers with names.

    The other arguments are those of the official client. They are accepted with their defaults only, and raise
    `NotImplementedError` otherwise. Raises `ValueError` or `TypeError` naming the argument; connects only when
    the first producer is created. Any thread may use a client.
    """

    def __init__(
        self,
        service_url: str | AutoClusterFailover | ServiceInfoProvider,
        authentication: Authentication | None = None,
        operation_timeout_seconds: float = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        logger: logging.Logger | None = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        keep_alive_interval_seconds: float = 30,
        memory_limit_bytes: int = 64 * 1024 * 1024,
        initial_backoff_interval_ms: int = 100,
        max_backoff_interval_ms: int = 10000,
        connections_per_broker: int = 1,
        connection_max_idle_seconds: float | None = 60,
        description: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        tls_minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
        tls_ciphers: str | None = None,
        proxy_service_url: str | None = None,
        proxy_protocol: ProxyProtocol | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "service_url")}
        options = ClientOptions.from_arguments(**arguments)
        source = self._source = ServiceSource(service_url, options)
        thread = self._thread = LoopThread(
            lambda: ClientCore(source.first, on_released=lambda core: source.close())
        )
        try:
            source.start(thread.core, lambda call: thread.begin(on_loop(call)))
        except BaseException:
            self.shutdown()
            raise

    def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: object = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool | None = None,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: object = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[[Message, int], int] | None = None,
        hashing_scheme: HashingScheme = HashingScheme.BoostHash,
        partitions_update_interval_seconds: float | None = 60,
        compression_level: int | None = None,
    ) -> Producer:
        """Register a producer on a topic and wait until the broker has accepted it.

        topic: `name`, `tenant/namespace/name` or a complete `persistent://` or `non-persistent://` name.
        producer_name: default chosen by the broker.
        schema: of `pulsar_fast.schema`, of the official client's `pulsar.schema`, or any object with `encode` and
            `schema_info`. The broker refuses it with `IncompatibleSchema`. Default none: contents are bytes.
        initial_sequence_id: the first message gets the one after it.
        send_timeout_millis: from the call to the failure of a message without a receipt, 0 for never.
        max_pending_messages: messages without an answer, 0 for no limit. block_if_queue_full: wait for room
            (in order of arrival, at most the send timeout) instead of failing with `ProducerQueueIsFull`.
        batching_enabled: by default on, with only messages of one key in a batch as soon as keys are given; True
            batches all of them; False sends each message on its own. batching_max_messages,
            batching_max_allowed_size_in_bytes (bytes), batching_max_publish_delay_ms (ms): what ends a batch.
        access_mode: `Shared`; `Exclusive` (refused with `ProducerBusy` or `ProducerFenced` while there are others),
            `WaitForExclusive` (waits for its turn as long as it takes), `ExclusiveWithFencing` (the others end with
            `ProducerFenced`). One that has lost its exclusive access ends with `ProducerFenced`.
        compression_type: how each batch (or message alone) is compressed: LZ4, ZSTD and SNAPPY need the extra `lz4`,
            `zstd` or `snappy`. compression_level: int, of ZLib (1 to 9, default 6) and ZSTD (-7 to 22, default 3).
        properties: of the producer, dict of str to str.
        message_routing_mode: where messages without a key go on a topic with partitions: to each in turn (with the
            batches), or to one, chosen at random. message_router: `(message, partitions) -> int` instead, for all
            messages, called on the sending thread. hashing_scheme: what finds the partition of a `partition_key`.
        max_pending_messages_across_partitions: divided among the partitions, 0 for no limit.
        lazy_start_partitioned_producers: register partitions with their first message, unless there is a
            `producer_name`. partitions_update_interval_seconds: between looks for new ones, None for never.

        The other arguments are those of the official client; they raise `NotImplementedError` unless at their
        default. Raises `ValueError` or `TypeError` naming the argument before anything is sent, what the broker
        refuses, the last connection error once the operation timeout has passed, and `ImportError` when the library
        of `compression_type` is not installed.
        """
        arguments = {name: value for name, value in locals().items() if name not in ("self", "topic")}
        options = ProducerOptions.from_arguments(**arguments)
        name = TopicName.parse(topic)
        thread, rest = self._thread, (options.block_if_queue_full, options.send_timeout_seconds)
        core = thread.call(
            "Client.create_producer()",
            self._core.create_producer(name, options, lambda core: ThreadSender(thread, core, *rest)),
        )
        kind = Producer if options.schema is None else EncodingProducer
        producer: Producer = kind(self, thread, core, *rest)
        return producer

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Complete names of the partitions of a topic; of the topic itself if it has none."""
        name = TopicName.parse(topic)
        count = self._thread.call("Client.get_topic_partitions()", self._core.partitions_of(name))
        return [name.partition_name(index) for index in range(count)] or [name.full]

    def update_service_url(self, service_url: str | ServiceInfo) -> None:
        """Go to another cluster, with all producers and what is pending, in order.

        service_url: a URL, for which authentication and trust stay what they are, or a `ServiceInfo`. What the old
        cluster had taken without saying so may be stored by both. Raises `TypeError` or `ValueError` for what cannot
        be used, also when it is not the caller who names the cluster.
        """
        service = self._source.changed(service_url, self.get_service_info())
        self._thread.call("Client.update_service_url()", on_loop(lambda: self._core.use(service)))

    def get_service_info(self) -> ServiceInfo:
        """The cluster that is in use."""
        return self._core.cluster.service.info

    @property
    def _core(self) -> ClientCore:
        self._thread.check_process()
        return self._thread.core

    def close(self) -> None:
        """Close every producer, which waits for what it has accepted, then all connections; idempotent."""
        self._finish("Client.close()", self._core.close())

    def shutdown(self) -> None:
        """End at once: what is pending fails with `AlreadyClosed`; idempotent."""
        self._finish("Client.shutdown()", on_loop(self._core.shut_down))

    def _finish(self, what: str, work: Any) -> None:
        if self._core.is_released:
            work.close()
        else:
            self._thread.call(what, work)
        self._thread.stop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pulsar_fast.Client of {self._thread.core.cluster.lookup}>"

    def __reduce__(self) -> "tuple[object, ...]":
        raise TypeError("a client cannot be pickled: create one in each process")

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is None or thread.core.closed or thread._forks != fork_count():
            return
        thread.begin_stop(thread.core.close())  # first: the warning may raise
        warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
