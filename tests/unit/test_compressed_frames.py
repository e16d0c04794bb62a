"""Compressed frames: what is on the wire, what is kept and for how long, and what becomes of failures."""

import random
import subprocess
import sys
import zlib

import cramjam
import lz4.block
import pulsar
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast.compression import Codec, codec_for
from pulsar_fast.enums import CompressionType
from pulsar_fast.exceptions import UnknownError
from pulsar_fast.options import ProducerOptions
from pulsar_fast.result import Result
from pulsar_fast.wire.messages import MessageMetadata
from tests.unit.harness import IDLE, START_MS, Heard, Rig, examples, receipt
from tests.unit.test_frames import Message, in_frame, messages

KINDS = [kind for kind in CompressionType if kind is not CompressionType.NONE]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)

NOISE = random.Random(4).randbytes(100_000)
TEXT = b" ".join(b"%d green bottles" % number for number in range(4000))

BY_LIBRARY = {
    CompressionType.LZ4: lambda data: lz4.block.compress(data, store_size=False),
    CompressionType.ZLib: lambda data: zlib.compress(data, 6),
    CompressionType.ZSTD: lambda data: zstandard.ZstdCompressor(level=3).compress(data),
    CompressionType.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}


def rig_with(kind, **settings):
    return Rig(codec=codec_for(kind, None), **settings)


def results(heard):
    return [one.result for one in heard]


# --- on the wire


def sent(rig, messages):
    link = rig.connect(schema_version=b"\x01")
    for message in messages:
        message.send(rig)
    while not rig.flush():
        pass
    return link.frames


def assert_compressed(kind, messages, **settings):
    """Each frame is that of a producer without compression, with the library's bytes where they are fewer."""
    with Rig(**settings) as rig:
        plain = sent(rig, messages)
    with rig_with(kind, **settings) as rig:
        frames = sent(rig, messages)
    assert len(frames) == len(plain)
    for frame, before in zip(frames, plain, strict=True):
        metadata = MessageMetadata.FromString(before.metadata.SerializeToString())
        payload = BY_LIBRARY[kind](before.payload)
        metadata.compression = int(kind)
        metadata.uncompressed_size = len(before.payload)
        saved = len(before.metadata.SerializeToString()) + len(before.payload)
        saved -= len(metadata.SerializeToString()) + len(payload)
        if saved <= 0:
            assert frame.raw == before.raw
            continue
        command = before.raw[8 : 8 + int.from_bytes(before.raw[4:8], "big")]
        assert frame.raw == in_frame(command, metadata.SerializeToString(), payload)
        assert frame.body == before.payload
        assert frame.contents == before.contents


@each_kind
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize(
    "content", [b"", b"x", TEXT[:1000], NOISE, TEXT], ids=["0", "1", "text", "noise", "large"]
)
def test_frames_with_the_bytes_of_the_library(kind, batching, content):
    assert_compressed(kind, [Message(content)] * 3, batching=batching)


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD], ids=lambda kind: kind.name)
@examples(40)
@given(messages=messages, batching=st.booleans(), by_key=st.booleans())
def test_any_messages(kind, messages, batching, by_key):
    assert_compressed(kind, messages, batching=batching, by_key=by_key, max_messages=5)


VECTORS = {
    CompressionType.LZ4: "5068656c6c6f",
    CompressionType.ZLib: "789cca48cdc9c907000000ffff",
    CompressionType.ZSTD: "28b52ffd200529000068656c6c6f",
    CompressionType.SNAPPY: "051068656c6c6f",
}


@each_kind
def test_other_clients_read_what_the_libraries_write(kind):
    """What the Go client's tests know of each format: its decompressors, fed with that, say the same."""
    vector = bytes.fromhex(VECTORS[kind])
    if kind is CompressionType.ZLib:
        assert zlib.decompressobj().decompress(vector) == b"hello"  # without its end
    else:
        assert BY_LIBRARY[kind](b"hello") == vector


def test_what_compresses_badly_goes_as_it_is():
    with rig_with(CompressionType.ZSTD) as rig:
        link = rig.connect()
        rig.send(NOISE[:1000])
        rig.send(None)
        rig.flush()
        rig.send(TEXT)
        rig.flush()
        assert [frame.metadata.HasField("compression") for frame in link.frames] == [False, True]
        assert [frame.metadata.HasField("uncompressed_size") for frame in link.frames] == [False, True]
        assert [frame.contents for frame in link.frames] == [[NOISE[:1000], b""], [TEXT]]


@each_kind
def test_partial_writes_change_no_byte(kind):
    with rig_with(kind, max_messages=3) as rig:
        link = rig.connect()
        for number in range(60):
            rig.send(b"%d %s" % (number, TEXT[:500]))
            link.wire.room = 1 + number * 7 % 400
            rig.flush()
        link.wire.room = None
        while not rig.flush():
            pass
        contents = [content for frame in link.frames for content in frame.contents]
        assert contents == [b"%d %s" % (number, TEXT[:500]) for number in range(60)]


def test_compression_leaves_the_loop_a_turn():
    with rig_with(CompressionType.LZ4, batching=False) as rig:
        link = rig.connect()
        for _ in range(20):
            rig.send(TEXT)
        turns = 1
        while not rig.write():
            turns += 1
        assert turns > 20 * len(TEXT) // (1 << 20)
        assert len(link.frames) == 20


# --- what is kept


def keeping(kept):
    """A codec whose results can be looked at."""

    def compress(view):
        kept.append(lz4.block.compress(view, store_size=False))
        return kept[-1]

    return Codec(CompressionType.LZ4, compress)


def held(kept):
    """How often each is referred to, beside the list."""
    counts = [sys.getrefcount(one) for one in [*kept, bytes(9)]]
    return [count - counts[-1] - 1 for count in counts[:-1]]


def test_nothing_is_compressed_before_its_turn():
    kept = []
    with Rig(codec=keeping(kept), batching=False) as rig:
        link = rig.connect()
        link.wire.room = 0
        rig.send(TEXT)
        rig.queue.absorb()
        rig.detach()
        assert kept == []


def test_once_begun_only_the_compressed_bytes_are_kept():
    kept = []
    with Rig(codec=keeping(kept), batching=False) as rig:
        link = rig.connect()
        rig.send(TEXT)
        before = rig.pool.live_bytes
        link.wire.room = 100
        assert not rig.flush()
        assert rig.pool.live_bytes < before - len(TEXT)
        assert rig.budget.used >= len(TEXT)
        link.wire.room = None
        assert rig.flush()
        assert held(kept) == [1]
        link.feed(receipt(0))
        assert rig.accounts() == IDLE
        assert held(kept) == [0]


def test_a_resend_repeats_the_compressed_bytes():
    kept = []
    with Rig(codec=keeping(kept), max_messages=2) as rig:
        link = rig.connect()
        heard = [rig.send(b"%d %s" % (number, TEXT[:300])) for number in range(6)]
        link.wire.room = 60
        rig.flush()
        begun = bytes(link.wire.written)
        rig.detach()
        link.close()
        again = rig.connect(name="another name")
        rig.write()
        first, *others = again.frames
        assert first.raw == again.wire.written[: len(first.raw)]
        assert first.raw.startswith(begun)
        assert first.metadata.producer_name == "p"
        assert {frame.metadata.producer_name for frame in others} == {"another name"}
        assert [frame.ids for frame in again.frames] == [[0, 1], [2, 3], [4, 5]]
        again.feed(receipt(0), receipt(2), receipt(4))
        assert results(heard) == [Result.Ok] * 6
        assert held(kept) == [0] * len(kept)


@pytest.mark.parametrize("framed", [True, False])
def test_what_expires_before_it_is_written_is_cut_out(framed):
    kept = []
    with Rig(codec=keeping(kept), timeout_ms=100) as rig:
        link = rig.connect()
        heard = [rig.send(b"early" + TEXT[:300])]
        rig.tick(50)
        heard += [rig.send(b"late" + TEXT[:300])]
        link.wire.room = 0
        rig.queue.absorb()
        rig.accumulator.mark()
        if framed:
            assert not rig.write()
        rig.tick(60)
        rig.expire()
        assert results(heard) == [Result.Timeout, None]
        link.wire.room = None
        assert rig.write()
        [frame] = link.frames
        assert frame.contents == [b"late" + TEXT[:300]]
        assert frame.ids == [1]
        assert frame.metadata.compression == CompressionType.LZ4
        assert len(kept) == 1 + framed


def test_what_expires_after_it_has_begun_stays():
    with rig_with(CompressionType.SNAPPY, timeout_ms=100) as rig:
        link = rig.connect()
        heard = [rig.send(TEXT[:300]) for _ in range(2)]
        link.wire.room = 60
        rig.flush()
        rig.tick(150)
        rig.expire()
        assert results(heard) == [Result.Timeout] * 2
        link.wire.room = None
        assert rig.write()
        assert [frame.contents for frame in link.frames] == [[TEXT[:300]] * 2]
        link.feed(receipt(0))
        assert rig.queue.late == 1
        assert rig.accounts() == IDLE


# --- too big


LIMIT = 10_000


@each_kind
def test_a_message_above_the_limit_goes_if_it_fits_compressed(kind):
    with rig_with(kind) as rig:
        link = rig.connect(max_message_size=LIMIT)
        heard = [rig.send(content) for content in (b"x" * 15 * LIMIT, NOISE[: LIMIT * 2], b"last")]
        while not rig.flush():
            pass
        assert results(heard) == [None, Result.MessageTooBig, None]
        assert [frame.contents for frame in link.frames] == [[b"x" * 15 * LIMIT], [b"last"]]
        assert all(len(frame.raw) < LIMIT + 100 for frame in link.frames)


def test_a_message_far_above_the_limit_is_refused_at_once():
    with rig_with(CompressionType.ZSTD) as rig:
        rig.connect(max_message_size=LIMIT)
        assert rig.send(b"x" * 17 * LIMIT).result is Result.MessageTooBig
        assert rig.accounts() == IDLE


@pytest.mark.parametrize("size", range(9_900, 10_001, 10))
def test_what_fits_uncompressed_is_never_too_big(size):
    with rig_with(CompressionType.LZ4, batching=False) as rig:
        link = rig.connect(max_message_size=LIMIT)
        heard = rig.send(NOISE[:size])
        rig.flush()
        fits = size + len(
            MessageMetadata(producer_name="p", sequence_id=0, publish_time=START_MS).SerializeToString()
        )
        assert (heard.result is None) == (fits <= LIMIT) == (len(link.frames) == 1)


def test_a_lower_limit_is_about_what_is_sent():
    with rig_with(CompressionType.LZ4, batching=False) as rig:
        link = rig.connect()
        heard = [rig.send(content) for content in (b"x" * 9000, NOISE[:9000])]
        rig.flush()
        rig.detach()
        link.close()
        heard += [rig.send(content) for content in (b"y" * 9000, NOISE[-9000:], b"last")]
        again = rig.connect(max_message_size=1000)
        rig.write()
        assert results(heard) == [None, Result.MessageTooBig, None, Result.MessageTooBig, None]
        assert [frame.ids for frame in again.frames] == [[0], [2], [4]]


def test_a_refused_message_fails_in_its_turn():
    with rig_with(CompressionType.LZ4, batching=False) as rig:
        link = rig.connect(max_message_size=LIMIT)
        heard = [rig.send(content) for content in (b"first", NOISE[: 2 * LIMIT], b"last")]
        link.wire.room = 10
        assert not rig.flush()
        assert results(heard) == [None, Result.MessageTooBig, None]
        link.wire.room = None
        assert rig.write()
        assert [frame.contents for frame in link.frames] == [[b"first"], [b"last"]]


def test_a_callback_may_end_everything():
    with rig_with(CompressionType.LZ4, batching=False) as rig:
        link = rig.connect(max_message_size=LIMIT)
        heard = [Heard(rig.end), Heard()]
        for one, content in zip(heard, (NOISE[: 2 * LIMIT], b"last"), strict=True):
            rig.sender.send_async(content, one)
        rig.write()
        assert results(heard) == [Result.MessageTooBig, Result.AlreadyClosed]
        assert link.frames == []


# --- failures


def test_a_failure_of_the_library_fails_that_frame_alone():
    def compress(view):
        if bytes(view[:3]) == b"bad":
            raise MemoryError("no memory")
        return zlib.compress(view)

    with Rig(codec=Codec(CompressionType.ZLib, compress), batching=False) as rig:
        link = rig.connect()
        heard = [rig.send(content + TEXT) for content in (b"good", b"bad", b"bad", b"good")]
        errors = []
        rig.queue.when_complete(4, Future(errors))
        while not rig.flush():
            pass
        assert results(heard) == [None, Result.UnknownError, Result.UnknownError, None]
        assert [frame.ids for frame in link.frames] == [[0], [3]]
        link.feed(receipt(0), receipt(3))
        assert rig.accounts() == IDLE
        [error] = errors
        assert isinstance(error, UnknownError)
        assert error.message == "ZLib compression failed: MemoryError: no memory"
        assert isinstance(error.__cause__, MemoryError)


class Future:
    """What a flush waits for."""

    def __init__(self, results):
        self.results = results

    def done(self):
        return False

    def set_result(self, result):
        self.results.append(result)


def test_a_library_cannot_go_on_reading_after_its_call():
    views = []

    def compress(view):
        views.append(view)
        raise ValueError("refused")

    with Rig(codec=Codec(CompressionType.LZ4, compress)) as rig:
        rig.connect()
        heard = rig.send(TEXT)
        rig.flush()
        assert heard.result is Result.UnknownError
        with pytest.raises(ValueError, match="released"):
            bytes(views[0])


# --- options


def test_levels_are_passed_on():
    for kind, levels in ((CompressionType.ZLib, (1, 9)), (CompressionType.ZSTD, (-7, 19))):
        fast, small = (len(codec_for(kind, level).compress(memoryview(TEXT))) for level in levels)
        assert small < fast


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        *[(CompressionType.ZLib, level) for level in (-1, 0, 10)],
        *[(CompressionType.ZSTD, level) for level in (-8, 23)],
        *[(kind, 1) for kind in (CompressionType.NONE, CompressionType.LZ4, CompressionType.SNAPPY)],
    ],
)
def test_levels_that_there_are_not(kind, level):
    with pytest.raises(ValueError, match=f"compression_level.*{kind.name}"):
        ProducerOptions(compression_type=kind, compression_level=level)


@pytest.mark.parametrize("name", CompressionType.__members__)
def test_the_official_names_count_too(name):
    official = getattr(pulsar.CompressionType, name)
    options = ProducerOptions.from_arguments(compression_type=official)
    assert options.compression_type is CompressionType[name]


@pytest.mark.parametrize(
    ("kind", "library", "extra"),
    [("LZ4", "lz4", "lz4"), ("ZSTD", "zstandard", "zstd"), ("SNAPPY", "cramjam", "snappy")],
)
def test_a_missing_library_is_told_when_it_is_asked_for(kind, library, extra):
    code = f"""
import sys
sys.modules[{library!r}] = None
import pulsar_fast
client = pulsar_fast.Client("pulsar://127.0.0.1:1")
with client:
    try:
        client.create_producer("t", compression_type=pulsar_fast.CompressionType.{kind})
    except ImportError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{extra} compression needs {library}: pip install 'pulsar-fast[{extra}]'\n"
