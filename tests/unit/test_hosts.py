"""In which order the hosts of a service URL are tried, on a clock that stands still otherwise."""

import pytest

from pulsar_fast.hosts import Host, Hosts

A, B, C = (("a", 6650), ("b", 6650), ("c", 6650))


class Time:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_ns(self) -> int:
        return int(self.seconds * 1e9)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def hosts(time: Time) -> Hosts:
    return Hosts((A, B, C), time.now_ns, 30)


def test_the_first_one_stays_first_while_it_answers(hosts: Hosts) -> None:
    assert hosts.in_turn() == [A, B, C]
    hosts.answered(A)
    assert hosts.in_turn() == [A, B, C]


def test_one_that_failed_comes_last(hosts: Hosts) -> None:
    hosts.failed(A)
    assert hosts.in_turn() == [B, C, A]
    hosts.answered(B)
    assert hosts.in_turn() == [B, C, A]


def test_the_next_one_is_one_that_has_not_failed(hosts: Hosts, time: Time) -> None:
    hosts.failed(A)
    time.seconds += 1
    hosts.answered(C)
    hosts.failed(C)
    assert hosts.in_turn() == [B, A, C]


def test_who_answers_is_not_left_when_another_ones_time_is_over(hosts: Hosts, time: Time) -> None:
    hosts.failed(A)
    hosts.answered(B)
    time.seconds += 3600
    assert hosts.in_turn() == [B, C, A]
    hosts.failed(B)
    assert hosts.in_turn() == [C, A, B]


def seconds_in_quarantine(hosts: Hosts, time: Time, host: Host) -> float:
    started = time.seconds
    while hosts.in_turn()[-1] == host:
        time.seconds += 1
        assert time.seconds - started < 10_000
    return time.seconds - started


def test_quarantine_grows_and_is_bounded(time: Time) -> None:
    lengths = []
    hosts = Hosts((A, B), time.now_ns, 30)
    for _ in range(8):
        hosts.failed(A)
        lengths.append(seconds_in_quarantine(hosts, time, A))
    assert lengths == [30, 60, 120, 240, 480, 600, 600, 600]


def test_failing_as_the_last_resort_prolongs_nothing(time: Time) -> None:
    hosts = Hosts((A, B), time.now_ns, 30)
    for _ in range(100):
        hosts.failed(A)
        time.seconds += 0.1
    assert seconds_in_quarantine(hosts, time, A) == pytest.approx(20, abs=1)


def test_an_answer_ends_it(time: Time) -> None:
    hosts = Hosts((A, B), time.now_ns, 30)
    for _ in range(5):
        hosts.failed(A)
        time.seconds += 1000
    hosts.answered(A)
    assert hosts.in_turn() == [A, B]
    hosts.failed(A)
    assert seconds_in_quarantine(hosts, time, A) == 30


def test_all_of_them_are_tried_whatever_has_failed(hosts: Hosts, time: Time) -> None:
    for host in (B, C, A):
        hosts.failed(host)
        time.seconds += 1
    assert hosts.in_turn() == [B, C, A]


def test_clients_do_not_share_it(time: Time) -> None:
    Hosts((A, B), time.now_ns, 30).failed(A)
    assert Hosts((A, B), time.now_ns, 30).in_turn() == [A, B]
