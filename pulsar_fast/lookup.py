"""Finding the broker of a topic, and how many partitions a topic has."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ._core import Clock
from .bounds import TimeIsUp, within
from .connection import BrokerAddress, Connection
from .connection_pool import ConnectionPool
from .dialer import host_and_port
from .exceptions import ConnectError, LookupError, PulsarException, Timeout, from_server_error
from .hosts import Hosts
from .options import ClientOptions
from .service_url import ServiceUrl
from .topic_name import TopicName
from .wire.messages import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)

__all__ = ["Lookup"]

MAX_REDIRECTS = 20

_T = TypeVar("_T")


class Lookup:
    """Asks any host of the service URL; goes on to the next one when a host fails. Owned by the event loop."""

    def __init__(
        self, service_url: ServiceUrl, pool: ConnectionPool, clock: Clock, options: ClientOptions
    ) -> None:
        self._service_url = service_url
        self._hosts = Hosts(service_url.hosts, clock.now_ns)
        self._pool = pool
        self._listener_name = options.listener_name
        # Of several hosts a mute one must leave time for the next one.
        self._patience = options.operation_timeout_seconds / min(2, len(service_url.hosts))

    def __str__(self) -> str:
        return ", ".join(map(host_and_port, self._service_url.hosts))

    async def broker_of(self, topic: TopicName) -> BrokerAddress:
        """The broker that serves a topic. One attempt; raises what stopped it."""
        address, answer = await self._at_some_host(
            lambda connection: self._ask_for_broker(topic, connection, False)
        )
        return await self._follow(topic, address, answer)

    async def partitions_of(self, topic: TopicName) -> int:
        """How many partitions a topic has, 0 for one without. One attempt; raises what stopped it."""
        _, partitions = await self._at_some_host(lambda connection: self._count_partitions(topic, connection))
        return partitions

    async def _at_some_host(
        self, question: Callable[[Connection], Awaitable[_T]]
    ) -> tuple[BrokerAddress, _T]:
        """The address of the first host that answers, and its answer."""
        failure: PulsarException | None = None
        for host in self._hosts.in_turn():
            address = BrokerAddress(host, host)
            try:
                connection = await self._pool.get(address)
                answer = await within(self._patience, question(connection))
            except (ConnectError, Timeout) as error:
                failure = error
            except TimeIsUp:
                failure = Timeout(f"{address} did not answer within {self._patience:g} s")
            except PulsarException:
                self._hosts.answered(host)
                raise
            else:
                self._hosts.answered(host)
                return address, answer
            self._hosts.failed(host)
        assert failure is not None
        raise failure

    async def _follow(
        self, topic: TopicName, address: BrokerAddress, answer: CommandLookupTopicResponse
    ) -> BrokerAddress:
        """Ask again where the answer redirects to; the answer's `authoritative` is repeated."""
        for redirects_left in reversed(range(MAX_REDIRECTS + 1)):
            broker = self._named_broker(topic, address, answer)
            if answer.response == CommandLookupTopicResponse.Connect:
                return broker
            if redirects_left:
                address = broker
                connection = await self._pool.get(address)
                answer = await self._ask_for_broker(topic, connection, answer.authoritative)
        raise LookupError(f"{topic.full}: redirected more than {MAX_REDIRECTS} times")

    def _named_broker(
        self, topic: TopicName, asked: BrokerAddress, answer: CommandLookupTopicResponse
    ) -> BrokerAddress:
        url = answer.brokerServiceUrl
        if not url:
            raise LookupError(f"{asked} named no pulsar:// URL for {topic.full}")
        try:
            broker = ServiceUrl.parse(url, "the broker's URL").hosts[0]
        except (ValueError, NotImplementedError) as error:
            raise LookupError(f"{asked} answered for {topic.full}: {error}") from error
        return BrokerAddress(asked.physical if answer.proxy_through_service_url else broker, broker)

    async def _ask_for_broker(
        self, topic: TopicName, connection: Connection, authoritative: bool
    ) -> CommandLookupTopicResponse:
        request_id = connection.next_request_id()
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic.full
        command.lookupTopic.request_id = request_id
        command.lookupTopic.authoritative = authoritative
        if self._listener_name is not None:
            command.lookupTopic.advertised_listener_name = self._listener_name
        answer = (await connection.ask(request_id, command)).lookupTopicResponse
        if answer.response == CommandLookupTopicResponse.Failed:
            raise from_server_error(answer.error, answer.message)
        return answer

    async def _count_partitions(self, topic: TopicName, connection: Connection) -> int:
        request_id = connection.next_request_id()
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        command.partitionMetadata.topic = topic.full
        command.partitionMetadata.request_id = request_id
        answer = (await connection.ask(request_id, command)).partitionMetadataResponse
        if answer.response == CommandPartitionedTopicMetadataResponse.Failed:
            raise from_server_error(answer.error, answer.message)
        return int(answer.partitions)
