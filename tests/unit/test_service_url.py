import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast.service_url import ServiceUrl


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("pulsar://localhost:6650", [("localhost", 6650)]),
        ("pulsar://localhost", [("localhost", 6650)]),
        ("pulsar://localhost/", [("localhost", 6650)]),
        ("pulsar://localhost:1/", [("localhost", 1)]),
        ("PULSAR://Broker-1.example_x.com:65535", [("Broker-1.example_x.com", 65535)]),
        ("pulsar://10.0.0.1:7000", [("10.0.0.1", 7000)]),
        ("pulsar://a:1,b,c:3", [("a", 1), ("b", 6650), ("c", 3)]),
        ("pulsar://[::1]:6651", [("::1", 6651)]),
        ("pulsar://[::1]", [("::1", 6650)]),
        ("pulsar://[fe80::1]:1,[::2],h:3/", [("fe80::1", 1), ("::2", 6650), ("h", 3)]),
        ("pulsar://bücher.example", [("bücher.example", 6650)]),
    ],
)
def test_accepted(text, hosts):
    assert ServiceUrl.parse(text) == ServiceUrl("pulsar", tuple(hosts), tls=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must start with pulsar://"),
        ("localhost:6650", "must start with pulsar://"),
        ("pulsar:/localhost", "must start with pulsar://"),
        ("://localhost", "scheme '' is unknown"),
        (" pulsar://localhost", "scheme ' pulsar' is unknown"),
        ("kafka://localhost", "scheme 'kafka' is unknown"),
        ("pulsar://", "host is missing"),
        ("pulsar:///", "host is missing"),
        ("pulsar://:6650", "host is missing"),
        ("pulsar://a,,b", "host is missing"),
        ("pulsar://a,", "host is missing"),
        ("pulsar://a b", "characters that no host name has"),
        ("pulsar://a, b", "characters that no host name has"),
        ("pulsar://a\n", "characters that no host name has"),
        ("pulsar://a\0", "characters that no host name has"),
        ("pulsar://a//", "characters that no host name has"),
        ("pulsar://a/path", "characters that no host name has"),
        ("pulsar://a;b", "characters that no host name has"),
        ("pulsar://a?x=1", "characters that no host name has"),
        ("pulsar://a:6650/path", "port '6650/path'"),
        ("pulsar://a:", "port ''"),
        ("pulsar://a:0", "port '0'"),
        ("pulsar://a:65536", "port '65536'"),
        ("pulsar://a:99999", "port '99999'"),
        ("pulsar://a:" + "9" * 5000, "is not a number from 1 to 65535"),
        ("pulsar://a:-1", "port '-1'"),
        ("pulsar://a:+1", "port '\\+1'"),
        ("pulsar://a: 1", "port ' 1'"),
        ("pulsar://a:1\n", "port '1\\\\n'"),
        ("pulsar://a:1_0", "port '1_0'"),
        ("pulsar://a:٣", "port '٣'"),
        ("pulsar://::1:6650", "IPv6 address goes in brackets"),
        ("pulsar://[::1", "IPv6 address goes in brackets"),
        ("pulsar://[::1]6650", "IPv6 address goes in brackets"),
        ("pulsar://[localhost]:6650", "'localhost' is not an IPv6 address"),
        ("pulsar://[]:6650", "'' is not an IPv6 address"),
        ("http://localhost:8080/admin/v2", "port '8080/admin/v2'"),
        ("http://", "host is missing"),
        ("https://", "host is missing"),
        ("https://localhost:8443/admin/v2", "port '8443/admin/v2'"),
        ("ftp://localhost", "scheme 'ftp' is unknown"),
    ],
)
def test_refused(text, reason):
    with pytest.raises(ValueError, match=f"^service_url .*{reason}"):
        ServiceUrl.parse(text)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("pulsar+ssl://localhost", [("localhost", 6651)]),
        ("PULSAR+SSL://a:1,b", [("a", 1), ("b", 6651)]),
        ("pulsar+ssl://[::1]", [("::1", 6651)]),
    ],
)
def test_tls(text, hosts):
    assert ServiceUrl.parse(text) == ServiceUrl("pulsar+ssl", tuple(hosts), tls=True)


def test_tls_by_an_option_keeps_the_port_of_the_url():
    assert ServiceUrl.parse("pulsar://a", use_tls=True) == ServiceUrl("pulsar", (("a", 6650),), tls=True)


@pytest.mark.parametrize("text", ["pulsar+ssl:/a", "pulsar+ssl://", "pulsar+ssl://a:0", "pulsar+tls://a"])
def test_refused_with_tls(text):
    with pytest.raises(ValueError, match=r"^service_url "):
        ServiceUrl.parse(text)


def test_which_of_a_brokers_urls_counts():
    both = ("pulsar://a:1", "pulsar+ssl://b:2")
    plain, tls = ServiceUrl.parse("pulsar://x"), ServiceUrl.parse("pulsar+ssl://x")
    assert plain.of_broker(*both, "URL") == ("a", 1)
    assert tls.of_broker(*both, "URL") == ("b", 2)
    assert ServiceUrl.parse("pulsar://x", use_tls=True).of_broker(*both, "URL") == ("b", 2)
    with pytest.raises(ValueError, match=r"^URL: there is none with pulsar\+ssl://"):
        tls.of_broker(both[0], "", "URL")
    with pytest.raises(ValueError, match=r"^URL 'pulsar://a:1' must start with pulsar\+ssl://"):
        tls.of_broker("", both[0], "URL")
    with pytest.raises(ValueError, match=r"must start with pulsar://"):
        plain.of_broker(both[1], "", "URL")


@pytest.mark.parametrize("value", [None, 6650, b"pulsar://localhost", ["pulsar://localhost"]])
def test_other_types(value):
    with pytest.raises(TypeError, match=f"service_url must be a str .*not {type(value).__name__}"):
        ServiceUrl.parse(value)


def test_passwords_do_not_get_into_error_messages():
    with pytest.raises(ValueError, match="service_url must not hold a user name or password") as caught:
        ServiceUrl.parse("pulsar://user:secret@localhost:6650")
    assert "secret" not in str(caught.value)


def test_http():
    url = ServiceUrl.parse("HTTP://a,[::1]:18080/")
    assert url.is_http
    assert url.hosts == (("a", 8080), ("::1", 18080))
    assert not url.tls
    assert not ServiceUrl.parse("pulsar://a").is_http


def test_https():
    url = ServiceUrl.parse("HTTPS://a,[::1]:18443/")
    assert url == ServiceUrl("https", (("a", 8443), ("::1", 18443)), tls=True)
    assert url.is_http
    assert url.of_broker("pulsar://a:1", "pulsar+ssl://b:2") == ("b", 2)


def test_http_with_tls_to_brokers():
    url = ServiceUrl.parse("http://a", use_tls=True)
    assert url == ServiceUrl("http", (("a", 8080),), tls=True)


def test_brokers_have_no_http_urls():
    url = ServiceUrl.parse("pulsar://cluster")
    assert url.of_broker("pulsar://a:1", "") == ("a", 1)
    with pytest.raises(ValueError, match="'http://a:1' must start with pulsar://"):
        url.of_broker("http://a:1", "")


def test_urls_from_elsewhere_are_called_by_their_own_name():
    with pytest.raises(ValueError, match=r"^brokerServiceUrl 'x' "):
        ServiceUrl.parse("x", "brokerServiceUrl")


hosts = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)


@given(st.lists(st.tuples(hosts, st.integers(1, 65535)), min_size=1, max_size=4))
def test_what_is_written_is_read(pairs):
    def bracketed(host):
        return f"[{host}]" if ":" in host else host

    url = "pulsar://" + ",".join(f"{bracketed(host)}:{port}" for host, port in pairs)
    assert ServiceUrl.parse(url).hosts == tuple(pairs)


@given(st.text())
def test_no_text_does_anything_but_parse_or_say_why(text):
    try:
        url = ServiceUrl.parse("pulsar://" + text)
    except ValueError as error:
        url, reason = None, str(error)
    if url is None:
        assert reason.startswith("service_url")
        return
    assert url.hosts
    for host, port in url.hosts:
        assert 1 <= port <= 65535
        if ":" in host:
            ipaddress.IPv6Address(host)
