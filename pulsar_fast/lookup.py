"""Finding the broker of a topic, and how many partitions a topic has."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from .connection import BrokerAddress, Connection
from .connection_pool import ConnectionPool
from .dialer import host_and_port
from .exceptions import ConnectError, LookupError, PulsarException, Timeout, from_server_error
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

    def __init__(self, service_url: ServiceUrl, pool: ConnectionPool, listener_name: str | None) -> None:
        self._hosts = service_url.hosts
        self._pool = pool
        self._listener_name = listener_name
        self._current = 0

    def __str__(self) -> str:
        return ", ".join(map(host_and_port, self._hosts))

    async def broker_of(self, topic: TopicName) -> BrokerAddress:
        """The broker that serves a topic. One attempt; raises what stopped it."""
        return await self._at_some_host(lambda connection: self._follow(topic, connection))

    async def partitions_of(self, topic: TopicName) -> int:
        """How many partitions a topic has, 0 for one without. One attempt; raises what stopped it."""
        return await self._at_some_host(lambda connection: self._count_partitions(topic, connection))

    async def _at_some_host(self, question: Callable[[Connection], Awaitable[_T]]) -> _T:
        failure: PulsarException | None = None
        for _ in self._hosts:
            host = self._hosts[self._current]
            try:
                return await question(await self._pool.get(BrokerAddress(host, host)))
            except (ConnectError, Timeout) as error:
                failure = error
                if self._hosts[self._current] == host:  # or another question has moved on already
                    self._current = (self._current + 1) % len(self._hosts)
        assert failure is not None
        raise failure

    async def _follow(self, topic: TopicName, connection: Connection) -> BrokerAddress:
        """Ask, and ask again where the answer redirects to; the answer's `authoritative` is repeated."""
        authoritative = False
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._ask_for_broker(topic, connection, authoritative)
            url = answer.brokerServiceUrl
            if not url:
                raise LookupError(f"{connection.address} named no pulsar:// URL for {topic.full}")
            try:
                broker = ServiceUrl.parse(url, "the broker's URL").hosts[0]
            except (ValueError, NotImplementedError) as error:
                raise LookupError(f"{connection.address} answered for {topic.full}: {error}") from error
            physical = connection.address.physical if answer.proxy_through_service_url else broker
            address = BrokerAddress(physical, broker)
            if answer.response == CommandLookupTopicResponse.Connect:
                return address
            authoritative = answer.authoritative
            connection = await self._pool.get(address)
        raise LookupError(f"{topic.full}: redirected more than {MAX_REDIRECTS} times")

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
