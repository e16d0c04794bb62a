"""The hashes by which keys find their partitions: vectors of the other clients, and plain versions beside them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast import HashingScheme
from pulsar_fast._core import hash_of_key

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def java_hash(key: str) -> int:
    units = key.encode("utf-16-le")
    result = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        result = (31 * result + low + 256 * high) % 2**32
    return result & 0x7FFFFFFF


def murmur3(key: str) -> int:
    data = key.encode()
    result = 0

    def mixed(word: int) -> int:
        word = word * 0xCC9E2D51 % 2**32
        word = (word << 15 | word >> 17) % 2**32
        return word * 0x1B873593 % 2**32

    for start in range(0, len(data) // 4 * 4, 4):
        result ^= mixed(int.from_bytes(data[start : start + 4], "little"))
        result = ((result << 13 | result >> 19) * 5 + 0xE6546B64) % 2**32
    result ^= mixed(int.from_bytes(data[len(data) // 4 * 4 :], "little"))
    result ^= len(data)
    result = (result ^ result >> 16) * 0x85EBCA6B % 2**32
    result = (result ^ result >> 13) * 0xC2B2AE35 % 2**32
    return (result ^ result >> 16) & 0x7FFFFFFF


def boost(key: str) -> int:
    data = key.encode()

    def folded(left: int, right: int) -> int:
        product = (left % 2**64) * right
        return product % 2**64 ^ product >> 64

    step, factor = 0x9E3779B97F4A7C15, 0xDF442D22CE4859B9
    word = folded(step, factor)
    result = word ^ len(data)
    left = data
    while True:
        word += step
        if len(left) >= 8:
            last = int.from_bytes(left[:8], "little")
        elif len(left) >= 4:
            last = int.from_bytes(left[-4:], "little") << 8 * (len(left) - 4) | int.from_bytes(
                left[:4], "little"
            )
        elif left:
            at = (len(left) - 1) & 2
            half = len(left) >> 1
            last = left[at] << 8 * at | left[half] << 8 * half | left[0]
        else:
            last = 0
        result ^= folded(last + word, factor)
        if len(left) < 8:
            return folded(result + word, factor) & 0x7FFFFFFF
        left = left[8:]


PLAIN = {
    HashingScheme.JavaStringHash: java_hash,
    HashingScheme.Murmur3_32Hash: murmur3,
    HashingScheme.BoostHash: boost,
}


@pytest.mark.parametrize(
    ("scheme", "key", "expected"),
    [
        (HashingScheme.JavaStringHash, "", 0),
        (HashingScheme.JavaStringHash, "hello", 0x5E918D2),
        (HashingScheme.JavaStringHash, "test", 0x364492),
        (HashingScheme.JavaStringHash, "keykeykeykeykey1", 434058482),
        (HashingScheme.JavaStringHash, "keykeykey2", 42978643),
        (HashingScheme.Murmur3_32Hash, "", 0),
        (HashingScheme.Murmur3_32Hash, "k1", 2110152746),
        (HashingScheme.Murmur3_32Hash, "k2", 1479966664),
        (HashingScheme.Murmur3_32Hash, "key1", 462881061),
        (HashingScheme.Murmur3_32Hash, "key2", 1936800180),
        (HashingScheme.Murmur3_32Hash, "key01", 39696932),
        (HashingScheme.Murmur3_32Hash, "key02", 751761803),
        (HashingScheme.Murmur3_32Hash, "hello", 0x248BFA47),
        (HashingScheme.Murmur3_32Hash, "test", 0x3A6BD213),
        (HashingScheme.BoostHash, "a", 2135870748),
        (HashingScheme.BoostHash, "key1", 2071103098),
        (HashingScheme.BoostHash, "key2", 78330853),
        (HashingScheme.BoostHash, "my-key", 1997843344),
        (HashingScheme.BoostHash, "hello", 1742291129),
        (HashingScheme.BoostHash, "a-longer-key-0123456789", 1244813878),
    ],
)
def test_vectors(scheme: HashingScheme, key: str, expected: int) -> None:
    assert hash_of_key(scheme, key) == expected
    assert PLAIN[scheme](key) == expected


@pytest.mark.parametrize("scheme", HashingScheme)
@given(key=KEYS)
def test_every_length_and_character(scheme: HashingScheme, key: str) -> None:
    assert hash_of_key(scheme, key) == PLAIN[scheme](key)
