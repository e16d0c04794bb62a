"""Credentials that brokers ask for at any time, and whatever the application's supplier of them does meanwhile."""

import asyncio
import base64
import io
import logging
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import (
    Authentication,
    AuthenticationBasic,
    AuthenticationError,
    AuthenticationOauth2,
    AuthenticationToken,
    Client,
    Producer,
    PulsarException,
    Result,
    Timeout,
)
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers.frames import encode
from tests.brokers.token_server import TokenServer
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.scripted_http import answer, scripted_http
from tests.waiting import until

MakeClient = Callable[..., Client]
MakeProducer = Callable[..., Producer]
CONNECT, AUTH_RESPONSE = BaseCommand.CONNECT, BaseCommand.AUTH_RESPONSE


class Supplier:
    """Tokens t1, t2 and so on; from `misbehave` on, what that returns or raises."""

    def __init__(self) -> None:
        self.calls = 0
        self._act: Callable[[], Any] | None = None

    def misbehave(self, act: Callable[[], Any]) -> None:
        self._act = act

    def behave(self) -> None:
        self._act = None

    def __call__(self) -> Any:
        self.calls += 1
        return f"t{self.calls}" if self._act is None else self._act()


@pytest.fixture
def supplier() -> Supplier:
    return Supplier()


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """Set at the latest after the test, so that what waits for it ends."""
    event = threading.Event()
    yield event
    event.set()


def tokens_of_connects(broker: ScriptedBroker) -> list[bytes]:
    return [frame.command.connect.auth_data for frame in broker.got(CONNECT)]


def tokens_of_answers(broker: ScriptedBroker) -> list[bytes]:
    return [frame.command.authResponse.response.auth_data for frame in broker.got(AUTH_RESPONSE)]


def refused(text: str = "Failed to authenticate") -> bytes:
    """What a broker says of bad credentials on an open connection, before it closes it."""
    command = BaseCommand(type=BaseCommand.ERROR)
    command.error.request_id = 2**64 - 1
    command.error.error = ServerError.AuthenticationError
    command.error.message = text
    return encode(command)


# --- the first command


def test_what_connect_says(broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier) -> None:
    make_producer(client={"authentication": AuthenticationToken(supplier)})
    connect = broker.got(CONNECT)[0].command.connect
    assert (connect.auth_method_name, connect.auth_data) == ("token", b"t1")
    assert [field.name for field, _ in connect.feature_flags.ListFields()] == ["supports_auth_refresh"]


def test_what_connect_says_without_authentication(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    make_producer()
    connect = broker.got(CONNECT)[0].command.connect
    assert (connect.auth_method_name, connect.HasField("auth_data")) == ("none", False)
    assert connect.feature_flags.supports_auth_refresh
    broker.challenge()
    broker.wait_for(lambda broker: broker.got(AUTH_RESPONSE))
    answer = broker.got(AUTH_RESPONSE)[0].command.authResponse.response
    assert (answer.auth_method_name, answer.auth_data, answer.HasField("auth_data")) == ("none", b"", True)


def test_each_connection_gets_fresh_credentials(
    broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier
) -> None:
    producer = make_producer(client={"authentication": AuthenticationToken(supplier)})
    for round in range(3):
        producer.send(b"%d" % round)
        broker.cut_connections()
    producer.send(b"last")
    assert tokens_of_connects(broker) == [b"t1", b"t2", b"t3", b"t4"]


# --- challenges


@pytest.mark.parametrize("times", [1, 3])
def test_challenges_in_the_handshake(
    broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier, times: int
) -> None:
    broker.on_connect().challenge(times=1)
    if times > 1:
        broker.on_auth_response().challenge(times=times - 1)
    producer = make_producer(client={"authentication": AuthenticationToken(supplier)})
    producer.send(b"through")
    assert tokens_of_connects(broker) == [b"t1"]
    assert tokens_of_answers(broker) == [b"t%d" % (number + 2) for number in range(times)]


def test_a_conversation_of_several_steps(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    class Steps(Authentication):
        name = "steps"

        def initial_data(self) -> bytes:
            return b"hello"

        async def answer(self, challenge: bytes) -> bytes:
            return b"re: " + challenge

    broker.on_connect().challenge(b"who?", times=1)
    broker.on_auth_response().challenge(b"really?", times=1)
    make_producer(client={"authentication": Steps()}).send(b"through")
    answers = [frame.command.authResponse.response for frame in broker.got(AUTH_RESPONSE)]
    assert [answer.auth_data for answer in answers] == [b"re: who?", b"re: really?"]
    assert {answer.auth_method_name for answer in answers} == {"steps"}


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_challenge_under_traffic_holds_nothing_up(
    broker: ScriptedBroker, make_producer: MakeProducer, let_go: threading.Event, is_async: bool
) -> None:
    calls = []

    def supply() -> str:
        calls.append(None)
        if len(calls) > 1:
            assert let_go.wait(10)
        return f"t{len(calls)}"

    async def supply_async() -> str:
        calls.append(None)
        while len(calls) > 1 and not let_go.is_set():
            await asyncio.sleep(0.005)
        return f"t{len(calls)}"

    authentication = AuthenticationToken(supply_async if is_async else supply)
    producer = make_producer(client={"authentication": authentication})
    for number in range(1, 3):
        broker.challenge()
        until(lambda number=number: len(calls) == number + 1)  # it is being asked
        for _ in range(20):
            producer.send(b"meanwhile")
        assert len(tokens_of_answers(broker)) == number - 1
        let_go.set()
        broker.wait_for(lambda broker, number=number: len(tokens_of_answers(broker)) == number)
        let_go.clear()
    assert tokens_of_answers(broker) == [b"t2", b"t3"]
    assert producer.stats().reconnects == 0


def test_challenges_while_one_is_being_answered(
    broker: ScriptedBroker, make_producer: MakeProducer, let_go: threading.Event
) -> None:
    challenges = []

    class Slow(Authentication):
        name = "slow"

        async def initial_data(self) -> bytes:
            return b""

        def answer(self, challenge: bytes) -> bytes:
            challenges.append(challenge)
            assert let_go.wait(10)
            return challenge

    producer = make_producer(client={"authentication": Slow()})
    broker.challenge(b"first")
    until(lambda: challenges)
    for number in range(100):
        broker.challenge(b"%d" % number)
    producer.send(b"all of them have come")
    let_go.set()
    broker.wait_for(lambda broker: len(tokens_of_answers(broker)) == 2)
    assert tokens_of_answers(broker) == challenges == [b"first", b"99"]


def test_a_challenge_while_the_broker_does_not_read(
    broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier
) -> None:
    outcomes = Outcomes()
    client = {"authentication": AuthenticationToken(supplier)}
    producer = make_producer(client=client, batching_enabled=False, max_pending_messages=0)
    broker.stop_reading()
    for number in range(200):  # far more than sockets hold
        producer.send_async(bytes(100_000), outcomes.of(number))
    for _ in range(50):
        broker.challenge()
        for _ in range(5):  # turns of the loop, so that it reads one by one
            producer._client._thread.call("a turn", asyncio.sleep(0))
    until(lambda: supplier.calls > 1)
    broker.resume_reading()
    outcomes.wait_for(200, timeout=20)
    broker.wait_for(lambda broker: tokens_of_answers(broker))
    assert set(outcomes.results.values()) == {Result.Ok}
    assert supplier.calls < 5  # not an answer to each, for a peer that did not read any
    assert producer.stats().reconnects == 0


def test_a_connection_that_ends_needs_no_answer(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    calls, given_up = [], threading.Event()

    async def supply() -> str:
        calls.append(None)
        if len(calls) == 2:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                given_up.set()
                raise
        return "token"

    client = {"authentication": AuthenticationToken(supply), "operation_timeout_seconds": 30}
    producer = make_producer(client=client)
    broker.challenge()
    until(lambda: len(calls) == 2)
    broker.cut_connections()
    assert given_up.wait(5)
    producer.send(b"on the next one")
    assert tokens_of_answers(broker) == []


def test_an_answer_that_the_broker_refuses(
    broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier
) -> None:
    producer = make_producer(client={"authentication": AuthenticationToken(supplier)})
    broker.on_auth_response().answer_bytes(lambda frame: refused("expired"), times=1)
    broker.challenge()
    broker.wait_for(lambda broker: len(broker.got(CONNECT)) == 2)
    producer.send(b"with the next one")
    assert tokens_of_connects(broker) == [b"t1", b"t3"]
    assert producer.stats().last_connection_error == "Pulsar error: AuthenticationError: expired"


# --- suppliers that fail


def fail() -> str:
    raise RuntimeError("no token today")


BAD = {"raises": fail, "bytes": lambda: b"token", "nothing": lambda: None, "empty": lambda: ""}


@pytest.mark.parametrize("act", BAD.values(), ids=BAD)
@pytest.mark.parametrize("is_challenged", [False, True], ids=["connecting", "challenged"])
def test_a_supplier_that_fails_at_creation(
    broker: ScriptedBroker, make_client: MakeClient, supplier: Supplier, act: Any, is_challenged: bool
) -> None:
    if is_challenged:
        broker.on_connect().do(lambda frame: (supplier.misbehave(act), broker.challenge()))
    else:
        supplier.misbehave(act)
    client = make_client(broker.url, authentication=AuthenticationToken(supplier))
    with pytest.raises(AuthenticationError, match=r"no credentials \(token\) for 127.0.0.1"):
        client.create_producer("t")
    assert len(broker.links) == is_challenged
    assert supplier.calls == 1 + is_challenged  # raised at once


@pytest.mark.parametrize("act", BAD.values(), ids=BAD)
def test_a_supplier_that_fails_under_traffic(
    broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier, act: Any
) -> None:
    outcomes = Outcomes()
    producer = make_producer(client={"authentication": AuthenticationToken(supplier)})
    producer.send(b"before")
    supplier.misbehave(act)
    broker.challenge()
    until(lambda: not producer.is_connected())
    calls = supplier.calls
    producer.send_async(b"meanwhile", outcomes.of(0))
    until(lambda: supplier.calls > calls + 2)  # it goes on asking
    assert "no credentials (token)" in (producer.stats().last_connection_error or "")
    supplier.behave()
    outcomes.wait_for(1)
    assert outcomes.results == {0: Result.Ok}
    assert tokens_of_answers(broker) == []


def test_messages_keep_their_deadlines_while_there_are_no_credentials(
    broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier
) -> None:
    client = {"authentication": AuthenticationToken(supplier)}
    producer = make_producer(client=client, send_timeout_millis=300)
    supplier.misbehave(fail)
    broker.cut_connections()
    with pytest.raises(Timeout, match=r"no credentials.*RuntimeError"):
        producer.send(b"too late")
    supplier.behave()
    until(producer.is_connected)
    producer.send(b"in time")


def test_a_supplier_that_blocks_at_creation(
    broker: ScriptedBroker, make_client: MakeClient, let_go: threading.Event
) -> None:
    authentication = AuthenticationToken(lambda: str(let_go.wait(10)))
    client = make_client(broker.url, authentication=authentication, operation_timeout_seconds=0.5)
    with pytest.raises(AuthenticationError, match=r"none within 0\.45 s"):
        client.create_producer("t")
    assert broker.links == []


def test_a_supplier_that_blocks_in_the_handshake(
    broker: ScriptedBroker, make_client: MakeClient, supplier: Supplier, let_go: threading.Event
) -> None:
    broker.on_connect().do(lambda frame: (supplier.misbehave(lambda: let_go.wait(10)), broker.challenge()))
    client = make_client(broker.url, authentication=AuthenticationToken(supplier), connection_timeout_ms=300)
    with pytest.raises(AuthenticationError, match=r"asked for credentials and had none within 0\.3 s"):
        client.create_producer("t")


def test_a_supplier_that_blocks_under_traffic(
    broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier, let_go: threading.Event
) -> None:
    client = {"authentication": AuthenticationToken(supplier), "operation_timeout_seconds": 0.5}
    producer = make_producer(client=client)
    supplier.misbehave(lambda: let_go.wait(10))
    broker.challenge()
    until(lambda: supplier.calls == 2)
    producer.send(b"meanwhile")
    until(lambda: not producer.is_connected())
    producer.send_async(b"without credentials", None)
    assert supplier.calls == 2  # not called again before it returns
    supplier.behave()
    let_go.set()
    producer.send(b"after")
    assert broker.payloads == [b"meanwhile", b"without credentials", b"after"]


def test_closing_while_a_supplier_blocks(
    broker: ScriptedBroker, make_producer: MakeProducer, supplier: Supplier, let_go: threading.Event
) -> None:
    client = {"authentication": AuthenticationToken(supplier)}
    producer = make_producer(client=client)
    supplier.misbehave(lambda: let_go.wait(10))
    broker.challenge()
    until(lambda: supplier.calls == 2)
    producer.send(b"the last one")
    producer._client.close()
    assert broker.payloads == [b"the last one"]


# --- credentials that the broker refuses


def test_a_token_that_has_expired(
    broker: ScriptedBroker, make_producer: MakeProducer, make_client: MakeClient
) -> None:
    producer = make_producer(
        client={"authentication": AuthenticationToken("static")}, send_timeout_millis=400
    )
    broker.on_connect().answer_error(ServerError.AuthenticationError, "expired")
    broker.cut_connections()
    with pytest.raises(Timeout, match="expired"):
        producer.send(b"unheard")
    tried = len(broker.got(CONNECT)) - 1
    assert 2 <= tried < 100  # with back-off, and without end
    broker.forget_rules()
    until(producer.is_connected)
    broker.on_connect().answer_error(ServerError.AuthenticationError, "expired")
    client = make_client(broker.url, authentication=AuthenticationToken("static"))
    broker.take_frames()
    with pytest.raises(AuthenticationError, match="expired"):
        client.create_producer("t")
    assert len(broker.got(CONNECT)) == 1


# --- asyncio


async def answered_by(authentication: Authentication, broker: ScriptedBroker) -> None:
    """Challenged three times under traffic."""
    async with pulsar_fast.asyncio.Client(broker.url, authentication=authentication) as client:
        producer = await client.create_producer("t", send_timeout_millis=5000)
        for round in range(1, 4):
            broker.challenge()
            while len(tokens_of_answers(broker)) < round:  # bounded by the test's own timeout
                await producer.send(b"traffic")
        assert producer.stats().reconnects == 0


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_asyncio(broker: ScriptedBroker, supplier: Supplier, is_async: bool) -> None:
    async def supply() -> str:
        await asyncio.sleep(0)
        return str(supplier())

    asyncio.run(answered_by(AuthenticationToken(supply if is_async else supplier), broker))
    assert tokens_of_connects(broker) == [b"t1"]
    assert tokens_of_answers(broker) == [b"t2", b"t3", b"t4"]


# --- secrets


def shown(error: BaseException) -> str:
    """All that a report of an error may print, the variables of our own frames included."""
    seen = f"{error} {error!r} " + "".join(traceback.format_exception(error))
    told: traceback.TracebackException | None
    told = traceback.TracebackException.from_exception(error, capture_locals=True)
    while told is not None:
        for frame in told.stack:
            if frame.filename.startswith(PACKAGE):
                seen += f"{frame.locals}"
        told = told.__cause__ or told.__context__
    return seen


PACKAGE = str(Path(pulsar_fast.__file__).parent)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What all loggers write, asyncio's debug mode included."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(name)s %(threadName)s %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


class Leaky(Authentication):
    """Says its secret wherever it can."""

    name = "leaky"

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def initial_data(self) -> Any:
        raise ConnectionError(5, self.secret, self.secret)

    http_headers = initial_data


@pytest.fixture
def secret() -> str:
    return uuid.uuid4().hex


@pytest.fixture(params=["static", "callable", "async", "file", "basic", "oauth2"])
def speaking(request: pytest.FixtureRequest, secret: str, tmp_path: Path) -> Iterator[Authentication]:
    """One of each kind, and all its secrets are that one."""

    async def supply() -> str:
        return secret

    (tmp_path / "token").write_text(secret)
    with TokenServer(lambda form: secret) as server:
        server.secret = secret
        yield {
            "static": lambda: AuthenticationToken(secret),
            "callable": lambda: AuthenticationToken(lambda: secret),
            "async": lambda: AuthenticationToken(supply),
            "file": lambda: AuthenticationToken(f"file://{tmp_path / 'token'}"),
            "basic": lambda: AuthenticationBasic("me", secret),
            "oauth2": lambda: AuthenticationOauth2(
                {"issuer_url": server.url, "client_id": "me", "client_secret": secret}
            ),
        }[request.param]()


def test_no_secret_is_told_when_brokers_refuse(
    broker: ScriptedBroker, log: io.StringIO, speaking: Authentication, secret: str
) -> None:
    told = [repr(speaking)]

    async def live() -> None:
        asyncio.get_running_loop().slow_callback_duration = 0  # tells of every callback
        async with pulsar_fast.asyncio.Client(
            broker.url, authentication=speaking, initial_backoff_interval_ms=2
        ) as client:
            producer = await client.create_producer("t", send_timeout_millis=300)
            told.extend([repr(client), repr(producer), repr(client._core.options)])
            broker.challenge()
            while not broker.got(AUTH_RESPONSE):
                await producer.send(b"traffic")
            broker.on_auth_response().answer_bytes(lambda frame: refused())
            broker.on_connect().answer_error(ServerError.AuthenticationError)
            broker.challenge()
            broker.cut_connections()
            for attempt in (producer.send(b"late"), client.create_producer("other")):
                try:
                    await attempt
                except PulsarException as error:
                    told.append(shown(error))
            told.append(repr(producer.stats()))
            broker.forget_rules()

    asyncio.run(live(), debug=True)
    assert secret.encode() in broker.got(CONNECT)[0].raw
    assert len(told) == 7
    assert "Executing" in log.getvalue()
    assert secret not in log.getvalue() + "".join(told)


@pytest.mark.parametrize("speaking", ["static", "async", "basic", "oauth2"], indirect=True)
def test_no_secret_is_told_when_look_ups_fail(
    log: io.StringIO, speaking: Authentication, secret: str
) -> None:
    told = []

    async def live(url: str) -> None:
        asyncio.get_running_loop().slow_callback_duration = 0
        options = {"operation_timeout_seconds": 0.05, "initial_backoff_interval_ms": 2}
        async with pulsar_fast.asyncio.Client(url, authentication=speaking, **options) as client:
            try:
                await client.create_producer("t")
            except PulsarException as error:
                told.append(shown(error) + repr(client))

    with scripted_http() as web:
        failures = [
            answer(401),
            answer(403, {"reason": "no"}),
            answer(500),
            answer(307, Location="http://127.0.0.1:1/"),
            answer(307, Location="ftp://127.0.0.1/"),
            answer(200, {}),
            answer(200, "x" * 70_000),
            b"",
            None,
        ]
        for said in failures:
            web.script = lambda target, said=said: said
            asyncio.run(live(web.url), debug=True)
        asked = {line for request in web.requests for line in request if line.startswith("Authorization: ")}
    assert asked & {f"Authorization: Bearer {secret}", "Authorization: " + basic("me", secret)}
    assert len(told) == len(failures)
    assert "Executing" in log.getvalue()
    assert secret not in log.getvalue() + "".join(told)
    assert basic("me", secret) not in log.getvalue() + "".join(told)


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize("over_http", [False, True], ids=["pulsar", "http"])
@pytest.mark.parametrize("kind", ["raises", "oauth2", "str", "bytes", "key file", "line breaks"])
def test_no_secret_is_told_when_suppliers_fail(
    broker: ScriptedBroker,
    make_client: MakeClient,
    log: io.StringIO,
    secret: str,
    tmp_path: Path,
    kind: str,
    over_http: bool,
) -> None:
    class Str(Leaky):
        def initial_data(self) -> Any:
            return self.secret

        http_headers = initial_data

    class LineBreaks(Leaky):
        def initial_data(self) -> Any:
            return {"X": f"{self.secret}\r\n"}

        http_headers = initial_data

    path = tmp_path / "key.json"
    path.write_text(f'{{"client_id": "{secret}", "client_secret": {{"{secret}": 1}}}}')
    with TokenServer(lambda form: "t") as server:
        found = {"issuer_url": server.url, "client_id": "me", "client_secret": secret}
        filed = {"issuer_url": server.url, "private_key": str(path)}
        authentication = {
            "raises": Leaky(secret),
            "oauth2": AuthenticationOauth2(found),
            "str": Str(secret),
            "bytes": AuthenticationToken(lambda: secret.encode()),
            "key file": AuthenticationOauth2(filed),
            "line breaks": LineBreaks(secret),
        }[kind]
        url = broker.url.replace("pulsar://", "http://") if over_http else broker.url
        client = make_client(url, authentication=authentication)
        with pytest.raises(AuthenticationError, match="no credentials") as caught:
            client.create_producer("t")
    assert secret not in log.getvalue() + shown(caught.value)
