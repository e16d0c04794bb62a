"""Finding the broker of a topic, and how many partitions a topic has."""

from ._core import Clock
from .connection import BrokerAddress
from .connection_pool import ConnectionPool
from .dialer import host_and_port
from .exceptions import LookupError, from_server_error
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


class Lookup:
    """Asks any host of the service URL; goes on to the next one when a host fails. Owned by the event loop."""

    def __init__(
        self, service_url: ServiceUrl, pool: ConnectionPool, clock: Clock, options: ClientOptions
    ) -> None:
        self.service_url = service_url
        self._hosts = Hosts(service_url.hosts, clock.now_ns, options.operation_timeout_seconds)
        self._pool = pool
        self._listener_name = options.listener_name

    def __str__(self) -> str:
        return ", ".join(map(host_and_port, self.service_url.hosts))

    async def broker_of(self, topic: TopicName) -> BrokerAddress:
        """The broker that serves a topic. One attempt; raises what stopped it."""
        host, answer = await self._hosts.first_to_answer(
            lambda host: self._ask_for_broker(topic, BrokerAddress(host, host), False)
        )
        return await self._follow(topic, BrokerAddress(host, host), answer)

    async def partitions_of(self, topic: TopicName) -> int:
        """How many partitions a topic has, 0 for one without. One attempt; raises what stopped it."""
        _, partitions = await self._hosts.first_to_answer(
            lambda host: self._count_partitions(topic, BrokerAddress(host, host))
        )
        return partitions

    async def probe(self) -> None:
        """Raises what keeps every host from being reached, on a connection of its own."""
        await self._hosts.first_to_answer(lambda host: self._pool.probe(BrokerAddress(host, host)))

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
                answer = await self._ask_for_broker(topic, address, answer.authoritative)
        raise LookupError(f"{topic.full}: redirected more than {MAX_REDIRECTS} times")

    def _named_broker(
        self, topic: TopicName, asked: BrokerAddress, answer: CommandLookupTopicResponse
    ) -> BrokerAddress:
        try:
            broker = self.service_url.of_broker(answer.brokerServiceUrl, answer.brokerServiceUrlTls)
        except ValueError as error:
            raise LookupError(f"{asked} answered for {topic.full}: {error}") from error
        return BrokerAddress(asked.physical if answer.proxy_through_service_url else broker, broker)

    async def _ask_for_broker(
        self, topic: TopicName, address: BrokerAddress, authoritative: bool
    ) -> CommandLookupTopicResponse:
        connection = await self._pool.get(address)
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

    async def _count_partitions(self, topic: TopicName, address: BrokerAddress) -> int:
        connection = await self._pool.get(address)
        request_id = connection.next_request_id()
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        command.partitionMetadata.topic = topic.full
        command.partitionMetadata.request_id = request_id
        answer = (await connection.ask(request_id, command)).partitionMetadataResponse
        if answer.response == CommandPartitionedTopicMetadataResponse.Failed:
            raise from_server_error(answer.error, answer.message)
        return int(answer.partitions)
