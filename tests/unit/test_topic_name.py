import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast.exceptions import InvalidTopicName
from pulsar_fast.topic_name import TopicName


@pytest.mark.parametrize(
    ("topic", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("tenant/ns/t", "persistent://tenant/ns/t"),
        ("persistent://tenant/ns/t", "persistent://tenant/ns/t"),
        ("non-persistent://tenant/ns/t", "non-persistent://tenant/ns/t"),
        ("persistent://prop/cluster/ns/t", "persistent://prop/cluster/ns/t"),
        ("persistent://prop/cluster/ns/t/u", "persistent://prop/cluster/ns/t/u"),
        ("a b", "persistent://public/default/a b"),
        ("a:b", "persistent://public/default/a:b"),
        ("a%20b", "persistent://public/default/a%20b"),
        ("é", "persistent://public/default/é"),
        ("😀", "persistent://public/default/😀"),
        ("my-tenant/ns.1=a_b:c/t", "persistent://my-tenant/ns.1=a_b:c/t"),
    ],
)
def test_accepted(topic, full):
    name = TopicName.parse(topic)
    assert name.full == full
    assert name.persistent is full.startswith("persistent://")
    assert name.partition == -1
    assert TopicName.parse(full) == name


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("\t\n", "empty"),
        ("a/b", "it must be"),
        ("a/b/c/d", "it must be"),
        ("/t", "it must be"),
        ("t/", "it must be"),
        ("a//c", "'' is no tenant or namespace"),
        ("/b/c", "'' is no tenant or namespace"),
        ("a/b/", "empty"),
        ("foo://a/b/c", "domain 'foo'"),
        ("Persistent://a/b/c", "domain 'Persistent'"),
        ("://a/b/c", "domain ''"),
        ("persistent://", "must have a tenant"),
        ("persistent://t", "must have a tenant"),
        ("persistent://a/b", "must have a tenant"),
        ("persistent:///b/c", "'' is no tenant"),
        ("persistent://a/b/c/", "empty"),
        ("persistent://a b/c/d", "'a b' is no tenant"),
        ("persistent://é/c/d", "'é' is no tenant"),
        ("persistent://a\n/c/d", "is no tenant"),
        ("\ud800", "surrogate"),
        ("persistent://a/b/c\udfff", "surrogate"),
    ],
)
def test_refused(topic, reason):
    with pytest.raises(InvalidTopicName, match=reason) as caught:
        TopicName.parse(topic)
    assert isinstance(caught.value, ValueError)
    assert caught.value.message.startswith("topic ")
    str(caught.value).encode()  # what was refused can be logged


@pytest.mark.parametrize("topic", [None, 1, b"t", ["t"]])
def test_other_types(topic):
    with pytest.raises(TypeError, match=f"topic must be a str, not {type(topic).__name__}"):
        TopicName.parse(topic)


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        ("t-partition-0", 0),
        ("persistent://a/b/t-partition-17", 17),
        ("t-partition-1-partition-2", 2),
        ("t-partition-", -1),
        ("t-partition-x", -1),
        ("t-partition--1", -1),
        ("t-partition-01", -1),
        ("t-partition-1\n", -1),
        ("t-partition-٣", -1),
        ("t-partition-99999999999", -1),
        ("partition-3", -1),
    ],
)
def test_partition(topic, partition):
    assert TopicName.parse(topic).partition == partition


@given(st.integers(0, 10**6))
def test_names_of_partitions(index):
    name = TopicName.parse("tenant/ns/t").partition_name(index)
    assert name == f"persistent://tenant/ns/t-partition-{index}"
    assert TopicName.parse(name).partition == index


@given(st.text())
def test_whatever_is_accepted_can_go_over_the_wire(text):
    try:
        name = TopicName.parse(text)
    except InvalidTopicName:
        return
    assert name.full.encode().decode() == name.full
    assert name.full.endswith(text)
