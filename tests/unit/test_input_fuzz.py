"""Whatever comes into the core from outside, arguments of the application or bytes of the peer, is taken as it is,
or refused with an error that says why, and nothing is left of it.

Meant for the sanitizers above all (`make asan`).
"""

import array
import itertools
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast._core import Feed, FrameError, SendHandle
from pulsar_fast.result import Result
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.unit.harness import START_MS, Rig, examples, framed, receipt

HIGHEST = 2**63 - 1
NO_UTF8 = "\ud800"
REFUSED = {Result.MessageTooBig, Result.ProducerQueueIsFull, Result.MemoryBufferIsFull}


class Text(str):
    pass


class Number(int):
    pass


class Octets(bytes):
    pass


def released():
    view = memoryview(b"x")
    view.release()
    return view


# --- arguments, as they should be and as they should not

texts = st.one_of(
    st.text(max_size=20),
    st.text(max_size=5).map(Text),
    st.builds(lambda piece, count: piece * count, st.text(min_size=1, max_size=3), st.integers(0, 1100)),
    st.sampled_from(["x" * 65_535, "é" * 35_000, "\0"]),
)
keys = st.sampled_from(["", "a", "a", "b"]) | st.sampled_from(["a", "b"]) | texts
sizes = st.one_of(st.integers(0, 300), st.integers(0, 70_000), st.integers(127 * 1024, 129 * 1024))
contents = st.one_of(
    st.binary(max_size=40),
    st.none(),
    sizes.map(bytes),
    sizes.map(bytearray),
    st.binary(max_size=40).map(Octets),
    st.lists(st.integers(0, 2**32 - 1), max_size=5).map(lambda numbers: array.array("I", numbers)),
    st.binary(max_size=40).map(lambda data: memoryview(data)[1:]),
    st.just(memoryview(bytes(24)).cast("B", (2, 3, 4))),
)
properties = st.one_of(
    st.dictionaries(st.text(max_size=10), texts, max_size=4),
    st.builds(
        lambda count, size: {f"{number:x}": "v" * size for number in range(count)},
        st.integers(0, 3000),
        st.integers(0, 20),
    ),
)
numbers = st.one_of(
    st.integers(0, 2**14), st.integers(0, HIGHEST), st.integers(0, 300).map(Number), st.just(HIGHEST)
)
SOUND = {
    "content": contents,
    "properties": properties,
    "partition_key": keys,
    "ordering_key": keys,
    "sequence_id": st.one_of(st.integers(0, 12), st.integers(13, 2**14), numbers),
    "replication_clusters": st.lists(texts, max_size=3) | st.tuples(texts),
    "disable_replication": st.sampled_from([True, False, None]),
    "event_timestamp": numbers,
    "deliver_at": numbers,
    "deliver_after": st.timedeltas(min_value=timedelta(0)),
}

no_text = st.sampled_from([NO_UTF8, "a" * 70_000 + NO_UTF8, b"bytes", 1, ["a"]])
no_number = st.sampled_from([-1, -(2**70), 2**63, 2**64, 1.0, "1", True, b"1"])
UNSOUND = {
    "content": st.sampled_from(["text", 1, [b"x"], object(), memoryview(bytes(9))[::2]])
    | st.builds(released),
    "properties": st.one_of(
        st.sampled_from([[("a", "b")], "ab", 1]),
        no_text.filter(lambda value: not isinstance(value, list)).map(lambda key: {"a": "b", key: "b"}),
        no_text.map(lambda value: {"a": "b", "b": value}),
    ),
    "partition_key": no_text,
    "ordering_key": no_text,
    "sequence_id": no_number,
    "replication_clusters": st.sampled_from(["a", {"a"}, [1], ("a", NO_UTF8), 1]),
    "disable_replication": st.sampled_from([1, 0, "yes"]),
    "event_timestamp": no_number,
    "deliver_at": no_number,
    "deliver_after": st.sampled_from([timedelta(-1), 5, 1.0]),
}


SHARED = ["content", "event_timestamp", "ordering_key", "partition_key", "properties"]
"""Arguments that a message may have in a batch with others."""


@st.composite
def calls(draw, names, unsound):
    """Arguments of one call, and which of them must be refused."""
    chosen = draw(st.sets(st.sampled_from([name for name in names if name in SHARED])))
    if draw(st.integers(0, 3)) == 3:
        chosen |= draw(st.sets(st.sampled_from([name for name in names if name not in SHARED])))
        if {"deliver_at", "deliver_after"} <= chosen:
            chosen.discard(draw(st.sampled_from(["deliver_at", "deliver_after"])))
    bad = set()
    if unsound and chosen and draw(st.integers(0, 3)) == 3:
        bad = draw(st.sets(st.sampled_from(sorted(chosen)), min_size=1, max_size=2))
    return {name: draw((UNSOUND if name in bad else SOUND)[name]) for name in sorted(chosen)}, bad


def assert_names_one_of(bad, error):
    assert any(name in str(error) for name in bad), f"{error!r} names none of {bad}"


# --- what is expected of a message, and what the wire says


def as_sent(arguments, next_id):
    """A message as its consumer should see it."""
    content = arguments.get("content", b"x")
    deliver_at = arguments.get("deliver_at")
    if "deliver_after" in arguments:
        deliver_at = START_MS + arguments["deliver_after"] // timedelta(milliseconds=1)
    clusters = arguments.get("replication_clusters") or []
    return {
        "content": b"" if content is None else bytes(content),
        "tombstone": content is None,
        "properties": list((arguments.get("properties") or {}).items()),
        "partition_key": arguments.get("partition_key"),
        "ordering_key": arguments.get("ordering_key"),
        "clusters": ["__local__"] if arguments.get("disable_replication") else list(clusters),
        "event_time": arguments.get("event_timestamp"),
        "deliver_at": deliver_at,
        "sequence_id": arguments.get("sequence_id", next_id),
    }


def as_read(frame):
    """The messages of a frame, likewise."""
    metadata = frame.metadata
    if metadata.HasField("num_messages_in_batch"):
        assert metadata.num_messages_in_batch == frame.send.num_messages == len(frame.entries)
        for single, content in frame.entries:
            yield _as_read(single, content, single.sequence_id, [], None, single.ordering_key)
    else:
        deliver_at = metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None
        yield _as_read(
            metadata,
            frame.payload,
            frame.send.sequence_id,
            list(metadata.replicate_to),
            deliver_at,
            metadata.ordering_key,
        )


def _as_read(metadata, content, sequence_id, clusters, deliver_at, ordering_key):
    return {
        "content": content,
        "tombstone": metadata.null_value,
        "properties": [(pair.key, pair.value) for pair in metadata.properties],
        "partition_key": metadata.partition_key if metadata.HasField("partition_key") else None,
        "ordering_key": ordering_key.decode() if metadata.HasField("ordering_key") else None,
        "clusters": clusters,
        "event_time": metadata.event_time if metadata.HasField("event_time") else None,
        "deliver_at": deliver_at,
        "sequence_id": sequence_id,
    }


def check_wire(link, limit, expected):
    """Exactly these messages were written, in this order, in frames that the broker takes."""
    read = []
    for frame in link.frames:
        assert len(frame.raw) <= limit + (10 << 10)
        assert len(frame.metadata.SerializeToString()) + len(frame.payload) <= limit
        read += as_read(frame)
    assert read == expected


def answer_all(link, known=0):
    """A receipt for each frame behind the first `known`; how many there are now."""
    frames = link.frames
    for entry, frame in enumerate(frames[known:]):
        assert link.feed(receipt(frame.send.sequence_id, entry=entry, highest=frame.send.highest_sequence_id))
    return len(frames)


large = st.just(5 << 20)
limits = large | large | large | st.sampled_from([70_000, 5000, 1200, 1000, 100, 60, 1, 0])
rigs = st.fixed_dictionaries(
    {
        "batching": st.sampled_from([True, True, True, False]),
        "by_key": st.sampled_from([False, False, True]),
        "max_messages": st.sampled_from([1000, 1000, 3, 1]),
        "max_bytes": st.sampled_from([128 << 10, 128 << 10, 500, 1]),
        "max_pending": st.sampled_from([0, 0, 0, 3]),
        "memory_limit": st.sampled_from([0, 0, 0, 100_000, 2000]),
    }
)


def without(arguments, name):
    return {key: value for key, value in arguments.items() if key != name}


def holdings(rig):
    """What a refused call must leave as it was."""
    accounts = rig.accounts()
    return (
        accounts["pending_messages"],
        accounts["bytes"],
        accounts["live_batches"],
        rig.accumulator.last_sequence_id,
    )


def send_one(rig, arguments, bad):
    """The callback of a message that was accepted; None: it was refused, and left nothing."""
    before = holdings(rig)
    exhausted = rig.accumulator.last_sequence_id == HIGHEST and "sequence_id" not in arguments
    heard = None
    try:
        heard = rig.send(arguments.get("content", b"x"), **without(arguments, "content"))
        problem = None
    except (TypeError, ValueError, OverflowError) as error:
        problem = error
    if bad:
        assert isinstance(problem, (TypeError, ValueError)), f"{bad} should have been refused"
        assert_names_one_of(bad, problem)
    elif problem is not None:
        assert exhausted, f"refused for no reason: {problem!r}"
        assert isinstance(problem, OverflowError)
    elif heard.result is None:
        return heard
    else:
        assert heard.result in REFUSED
    assert holdings(rig) == before
    return None


@examples(250)
@given(rigs, limits, st.integers(0, 2), st.lists(calls(sorted(SOUND), True), min_size=8, max_size=16))
def test_a_message_is_refused_or_goes_out_as_it_was_given(options, limit, early, messages):
    """The first ones before there is a connection, whose limit may then be too small for them."""
    accepted = []
    with Rig(**options) as rig:
        link = None
        for number, (arguments, bad) in enumerate(messages):
            if number == early:
                link = rig.connect(max_message_size=limit)
            last = rig.accumulator.last_sequence_id
            heard = send_one(rig, arguments, bad)
            if heard is not None:
                accepted.append((heard, as_sent(arguments, last + 1)))
        link = link or rig.connect(max_message_size=limit)
        assert rig.flush()
        assert {heard.result for heard, _ in accepted} <= {None, Result.MessageTooBig}
        written = [(heard, sent) for heard, sent in accepted if heard.result is None]
        check_wire(link, limit, [sent for _, sent in written])
        answer_all(link)
        assert {heard.result for heard, _ in written} <= {Result.Ok}


OF_ALL = ["properties", "partition_key", "ordering_key", "event_timestamp", "replication_clusters"]


@examples(150)
@given(
    rigs,
    limits.filter(lambda limit: limit >= 1000),
    calls([*OF_ALL, "disable_replication"], False),
    st.lists(
        st.tuples(contents, st.just(False)) | st.tuples(UNSOUND["content"], st.just(True)),
        min_size=6,
        max_size=12,
    ),
)
def test_an_input_goes_out_element_by_element(options, limit, call, elements):
    arguments, _ = call
    with Rig(**options) as rig:
        link = rig.connect(max_message_size=limit)
        handle = SendHandle(rig.accumulator.mark)
        feed = Feed(
            rig.sender,
            iter([content for content, _ in elements]),
            handle,
            *map(arguments.get, OF_ALL),
            arguments.get("disable_replication", False),
        )
        known = 0
        while feed.run():
            assert rig.flush()
            known = answer_all(link, known)
        handle._end_input()
        assert rig.flush()
        answer_all(link, known)
        assert handle.count == len(elements)
        errors = dict(handle.errors)
        ids = itertools.count()
        check_wire(
            link,
            limit,
            [
                as_sent({**arguments, "content": content}, next(ids))
                for index, (content, _) in enumerate(elements)
                if index not in errors
            ],
        )
        for index, (_, bad) in enumerate(elements):
            error = errors.get(index)
            if bad:
                assert isinstance(error, (TypeError, ValueError))
                assert_names_one_of(["content"], error)
            else:
                assert error is None or error.result in REFUSED


@examples(100)
@given(calls(OF_ALL, True), st.sampled_from([b"one", "one", bytearray(b"one")]) | st.none())
def test_arguments_for_a_whole_input_are_refused_at_once(call, one):
    arguments, bad = call
    with Rig() as rig:
        handle = SendHandle(rig.accumulator.mark)
        values = map(arguments.get, OF_ALL)
        if one is not None:
            bad = bad | {"payloads"}
        if not bad:
            Feed(rig.sender, [], handle, *values, False)
            return
        with pytest.raises((TypeError, ValueError)) as refused:
            Feed(rig.sender, [] if one is None else one, handle, *values, False)
        assert_names_one_of(bad, refused.value)
        assert handle.count == 0


# --- bytes of the peer


def send_error(sequence_id, code, message):
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    command.send_error.producer_id = 7
    command.send_error.sequence_id = sequence_id
    command.send_error.error = code
    command.send_error.message = message
    return framed(command.SerializeToString())


def redirect(url, request_id):
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    command.lookupTopicResponse.brokerServiceUrl = url
    command.lookupTopicResponse.request_id = request_id
    return framed(command.SerializeToString())


ids = st.one_of(st.integers(0, 6), st.integers(0, 2**64 - 1))
answers = st.one_of(
    st.integers(0, 6).map(receipt),
    st.builds(receipt, ids, ids, ids, producer_id=st.sampled_from([7, 7, 7, 8]), highest=ids),
    st.builds(send_error, ids, st.sampled_from(ServerError.values()), st.text(max_size=300)),
    st.builds(redirect, st.text(max_size=70_000), ids),
    st.binary(max_size=80).map(framed),
    st.binary(max_size=40),
)


@st.composite
def streams(draw):
    """Answers one behind the other, with bytes of them changed, taken out and put in."""
    stream = bytearray(b"".join(draw(st.lists(answers, max_size=8))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(stream)))
        stream[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(stream)


def outcome(stream, cuts, persistent, room, expires):
    """What a producer with some frames, the last one half written perhaps, makes of a stream in such pieces."""
    with Rig(timeout_ms=100) as rig:
        link = rig.connect(persistent=persistent)
        heard = []
        for number in range(6):
            heard.append(rig.send(b"x" * 100, deliver_at=1 if number % 2 else None))
            if number % 3 == 2:
                rig.accumulator.mark()
        link.wire.room = room
        rig.write()
        if expires:
            rig.tick(1000)
            rig.expire()
        edges = sorted({0, *(cut % (len(stream) + 1) for cut in cuts), len(stream)})
        problem = None
        try:
            link.feed(*(stream[a:b] for a, b in itertools.pairwise(edges)))
        except FrameError as error:
            problem = str(error)
        answers = [(each.result, str(each.message_id) if each.answers else None) for each in heard]
        return problem, link.heard, answers, rig.queue.late, rig.registration.slots_in_flight()


@examples(250)
@given(
    streams(),
    st.lists(st.integers(0, 100_000), max_size=40),
    st.booleans(),
    st.sampled_from([None, 0, 150, 350, 500]),
    st.booleans(),
)
def test_what_the_peer_says_means_the_same_in_any_pieces(stream, cuts, persistent, room, expires):
    """It is dispatched, or a `FrameError`; and all that was taken for it comes back."""
    whole = outcome(stream, [], persistent, room, expires)
    assert outcome(stream, cuts, persistent, room, expires) == whole
