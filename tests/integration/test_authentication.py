"""Apache Pulsar that lets only those in who say who they are."""

import asyncio
import base64
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import (
    Authentication,
    AuthenticationBasic,
    AuthenticationError,
    AuthenticationOauth2,
    AuthenticationToken,
    AuthorizationError,
    Client,
    Producer,
    Timeout,
)
from tests.brokers import apache, unavailable
from tests.brokers.admin import Login
from tests.brokers.apache import ApacheBroker
from tests.brokers.jwt import token_of
from tests.brokers.token_server import TokenServer
from tests.waiting import until

pytestmark = [pytest.mark.broker]

KEY = secrets.token_bytes(32)
PLUGIN = "org.apache.pulsar.client.impl.auth.Authentication"
PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
PASSWORDS = (
    "admin:$apr1$abcdefgh$iHQfnEX8n7Q2MMAIpYye10\n"  # admin-password
    "app:$apr1$abcdefgh$XgCS0T5cQmaVLjw5wix8J/\n"  # app-password
)

Produce = Callable[..., Producer]


def data_url(data: bytes) -> str:
    return f"data:;base64,{base64.b64encode(data).decode()}"


def running(settings: dict[str, str | int], login: Login) -> Iterator[ApacheBroker]:
    """A broker with the namespace acme/in, where only the role `writer` may produce."""
    if (reason := apache.available()) is not None:
        unavailable(reason)
    common = {"authenticationEnabled": "true", "authorizationEnabled": "true", "superUserRoles": "admin"}
    with ApacheBroker({**common, **settings}, login) as broker:
        broker.admin.put("/tenants/acme", {"allowedClusters": ["standalone"]})
        broker.admin.put("/namespaces/acme/in")
        broker.admin.post("/namespaces/acme/in/permissions/writer", ["produce"])
        yield broker


@pytest.fixture
def produce(broker: ApacheBroker) -> Iterator[Produce]:
    """A producer of a client of its own, which is closed after the test."""
    with ExitStack() as clients:

        def produce(
            authentication: Authentication | None, topic: str, url: str = broker.service_url, **options: Any
        ) -> Producer:
            client = Client(url, authentication=authentication, operation_timeout_seconds=10)
            clients.enter_context(client)
            return clients.enter_context(client.create_producer(topic, **options))

        yield produce


def stored(broker: ApacheBroker, name: str) -> int:
    """How many messages the broker has taken on a topic of acme/in."""
    return int(broker.admin.get(f"/persistent/acme/in/{name}/stats")["msgInCounter"])


TRAFFIC_SECONDS = float(os.environ.get("PULSAR_FAST_TRAFFIC_SECONDS", "15"))


class ShortLived:
    """Tokens for three seconds, each a new one."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return token_of(KEY, "writer", 3)


@pytest.fixture(scope="class")
def token_broker() -> Iterator[ApacheBroker]:
    admin = token_of(KEY, "admin")
    settings: dict[str, str | int] = {
        "authenticationProviders": f"{PROVIDER}Token",
        "tokenSecretKey": data_url(KEY),
        "authenticationRefreshCheckSeconds": 2,
        "brokerClientAuthenticationPlugin": f"{PLUGIN}Token",
        "brokerClientAuthenticationParameters": f"token:{admin}",
    }
    yield from running(settings, Login("token", admin))


class TestTokens:
    @pytest.fixture
    def broker(self, token_broker: ApacheBroker) -> ApacheBroker:
        return token_broker

    def test_a_good_token(self, broker: ApacheBroker, produce: Produce) -> None:
        produce(AuthenticationToken(token_of(KEY, "writer")), "acme/in/good").send(b"let in")
        assert stored(broker, "good") == 1

    @pytest.mark.parametrize(
        "authentication",
        [
            None,
            AuthenticationToken("garbage"),
            AuthenticationToken(token_of(KEY, "writer", -60)),
            AuthenticationToken(token_of(secrets.token_bytes(32), "writer")),
            AuthenticationBasic("writer", "password"),
        ],
        ids=["none", "garbage", "expired", "foreign key", "other method"],
    )
    def test_bad_tokens(self, produce: Produce, authentication: Authentication | None) -> None:
        with pytest.raises(AuthenticationError, match="Failed to authenticate"):
            produce(authentication, "acme/in/bad")

    @pytest.mark.parametrize(("role", "topic"), [("reader", "acme/in/t"), ("writer", "public/default/t")])
    def test_a_role_without_permission(self, produce: Produce, role: str, topic: str) -> None:
        with pytest.raises(AuthorizationError):
            produce(AuthenticationToken(token_of(KEY, role)), topic)

    def test_a_good_token_over_http(self, broker: ApacheBroker, produce: Produce) -> None:
        produce(AuthenticationToken(token_of(KEY, "writer")), "acme/in/web", broker.admin_url).send(b"let in")
        assert stored(broker, "web") == 1

    @pytest.mark.parametrize(
        "authentication",
        [
            None,
            AuthenticationToken("garbage"),
            AuthenticationToken(token_of(KEY, "writer", -60)),
            AuthenticationBasic("writer", "password"),
        ],
        ids=["none", "garbage", "expired", "other method"],
    )
    def test_bad_tokens_over_http(
        self, broker: ApacheBroker, produce: Produce, authentication: Authentication | None
    ) -> None:
        with pytest.raises(
            AuthenticationError, match=f"{broker.admin_url}/admin/.*: HTTP 401 Authentication required"
        ):
            produce(authentication, "acme/in/bad", broker.admin_url)

    @pytest.mark.parametrize(("role", "topic"), [("reader", "acme/in/t"), ("writer", "public/default/t")])
    def test_a_role_without_permission_over_http(
        self, broker: ApacheBroker, produce: Produce, role: str, topic: str
    ) -> None:
        """Over HTTP brokers do not tell that from credentials that are none, but for the words."""
        with pytest.raises(AuthenticationError, match=f"{broker.admin_url}/.*: HTTP 401 Unauthorized to "):
            produce(AuthenticationToken(token_of(KEY, role)), topic, broker.admin_url)

    def test_renewed_under_traffic(self, broker: ApacheBroker, produce: Produce) -> None:
        supply = ShortLived()
        producer = produce(AuthenticationToken(supply), "acme/in/renewed")
        ends, sent = time.monotonic() + TRAFFIC_SECONDS, 0
        while time.monotonic() < ends:
            producer.send(b"traffic")
            sent += 1
            time.sleep(0.005)
        self.judge(producer, supply, sent, stored(broker, "renewed"))

    @pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
    def test_renewed_under_traffic_in_asyncio(self, broker: ApacheBroker, is_async: bool) -> None:
        supply = ShortLived()

        async def supply_async() -> str:
            return supply()

        async def traffic() -> None:
            authentication = AuthenticationToken(supply_async if is_async else supply)
            async with pulsar_fast.asyncio.Client(
                broker.service_url, authentication=authentication
            ) as client:
                producer = await client.create_producer(f"acme/in/asyncio-{is_async}")
                ends, sent = time.monotonic() + TRAFFIC_SECONDS, 0
                while time.monotonic() < ends:
                    await producer.send(b"traffic")
                    sent += 1
                    await asyncio.sleep(0.005)
                self.judge(producer, supply, sent, stored(broker, f"asyncio-{is_async}"))

        asyncio.run(traffic())

    @staticmethod
    def judge(
        producer: "Producer | pulsar_fast.asyncio.Producer", supply: ShortLived, sent: int, came: int
    ) -> None:
        stats = producer.stats()
        assert sent == came == stats.acknowledged > 100
        assert stats.failed == stats.resent == stats.reconnects == 0
        assert supply.calls > TRAFFIC_SECONDS / 5  # the broker asks every two to four seconds

    def test_answered_with_an_expired_token(self, broker: ApacheBroker, produce: Produce) -> None:
        tokens = [token_of(KEY, "writer", 2)]
        authentication = AuthenticationToken(lambda: tokens[-1])
        producer = produce(authentication, "acme/in/expired", send_timeout_millis=1000)
        producer.send(b"while it is good")
        until(lambda: not producer.is_connected(), 20)
        with pytest.raises(Timeout, match="Failed to authenticate"):
            producer.send(b"too late")
        tokens.append(token_of(KEY, "writer"))
        until(producer.is_connected, 20)
        producer.send(b"with a good one")
        assert stored(broker, "expired") == 2

    def test_tokens_of_an_oauth2_server(self, broker: ApacheBroker, produce: Produce) -> None:
        with TokenServer(lambda form: token_of(KEY, form["client_id"], 3)) as server:
            server.life = 3
            given = {"issuer_url": server.url, "client_id": "writer", "client_secret": server.secret}
            producer = produce(AuthenticationOauth2(given), "acme/in/oauth2")
            until(lambda: bool(producer.send(b"traffic")) and len(server.forms) >= 3, 20)
            assert producer.stats().reconnects == 0
            given["client_secret"] = "wrong"
            with pytest.raises(AuthenticationError, match="HTTP 401, invalid_client"):
                produce(AuthenticationOauth2(given), "acme/in/oauth2")


@pytest.fixture(scope="class")
def basic_broker() -> Iterator[ApacheBroker]:
    settings: dict[str, str | int] = {
        "authenticationProviders": f"{PROVIDER}Basic",
        "basicAuthConf": data_url(PASSWORDS.encode()),
        "brokerClientAuthenticationPlugin": f"{PLUGIN}Basic",
        "brokerClientAuthenticationParameters": '{"userId":"admin","password":"admin-password"}',
    }
    yield from running(settings, Login("basic", "admin:admin-password"))


class TestBasic:
    @pytest.fixture
    def broker(self, basic_broker: ApacheBroker) -> ApacheBroker:
        return basic_broker

    def test_the_right_password(self, broker: ApacheBroker, produce: Produce) -> None:
        broker.admin.post("/namespaces/acme/in/permissions/app", ["produce"])
        produce(AuthenticationBasic("app", "app-password"), "acme/in/basic").send(b"let in")
        assert stored(broker, "basic") == 1

    def test_the_right_password_over_http(self, broker: ApacheBroker, produce: Produce) -> None:
        broker.admin.post("/namespaces/acme/in/permissions/app", ["produce"])
        produce(AuthenticationBasic("app", "app-password"), "acme/in/web", broker.admin_url).send(b"let in")
        assert stored(broker, "web") == 1
        with pytest.raises(AuthenticationError, match=": HTTP 401"):
            produce(AuthenticationBasic("app", "wrong"), "acme/in/web", broker.admin_url)

    @pytest.mark.parametrize(("user", "password"), [("app", "wrong"), ("nobody", "app-password")])
    def test_a_wrong_one(self, produce: Produce, user: str, password: str) -> None:
        with pytest.raises(AuthenticationError, match="Failed to authenticate"):
            produce(AuthenticationBasic(user, password), "acme/in/basic")

    def test_a_user_without_permission(self, produce: Produce) -> None:
        with pytest.raises(AuthorizationError):
            produce(AuthenticationBasic("app", "app-password"), "public/default/t")
