import dataclasses
import inspect
import logging
import math
import ssl

import pulsar
import pulsar.asyncio
import pytest

import pulsar_fast.schema
from pulsar_fast.authentication import AuthenticationTLS
from pulsar_fast.enums import (
    BatchingType,
    CompressionType,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProxyProtocol,
)
from pulsar_fast.options import ClientOptions, ProducerOptions

SIGNATURES = [
    pytest.param(ClientOptions, pulsar.Client.__init__, {"self", "service_url"}, id="Client"),
    pytest.param(ProducerOptions, pulsar.Client.create_producer, {"self", "topic"}, id="create_producer"),
    pytest.param(
        ProducerOptions,
        pulsar.asyncio.Client.create_producer,
        {"self", "topic"},
        id="asyncio",
    ),
]


def official_defaults(function, without):
    parameters = inspect.signature(function).parameters
    return {name: p.default for name, p in parameters.items() if name not in without}


def as_ours(value):
    """The official client's enum values, as the ones of the same name here; its `BytesSchema` as none."""
    for enum in (BatchingType, CompressionType, PartitionsRoutingMode, ProducerAccessMode):
        if type(value).__name__ == enum.__name__:
            return enum[value.name]
    return None if type(value).__name__ == "BytesSchema" else value


@pytest.mark.parametrize(("options", "function", "without"), SIGNATURES)
def test_every_official_default_is_accepted(options, function, without):
    defaults = {name: as_ours(value) for name, value in official_defaults(function, without).items()}
    built = options.from_arguments(**defaults)
    for name in defaults.keys() & {field.name for field in dataclasses.fields(options)}:
        assert getattr(built, name) == defaults[name]


@pytest.mark.parametrize(("options", "function", "without"), SIGNATURES)
def test_the_defaults_are_the_official_ones(options, function, without):
    official = official_defaults(function, without)
    for field in dataclasses.fields(options):
        if field.name in official and field.name not in ("batching_enabled", "tls_validate_hostname"):
            assert field.default == as_ours(official[field.name]), field.name
    assert ProducerOptions().batching_enabled is None
    assert ClientOptions().tls_validate_hostname is True


OTHER = {
    "message_routing_mode": PartitionsRoutingMode.UseSinglePartition,
    "batching_type": BatchingType.KeyBased,
    "access_mode": ProducerAccessMode.Exclusive,
}


@pytest.mark.parametrize(("options", "function", "without"), SIGNATURES)
def test_unsupported_arguments_are_refused_unless_at_their_default(options, function, without):
    supported = {field.name for field in dataclasses.fields(options)}
    names = official_defaults(function, without).keys() - supported
    assert names
    for name in names:
        for value in (OTHER.get(name, "secret"), 1.5, -7):
            with pytest.raises(NotImplementedError, match=rf"^{name} is not supported yet") as caught:
                options.from_arguments(**{name: value})
            assert "secret" not in str(caught.value)


def test_equal_values_of_other_types_are_not_the_default():
    with pytest.raises(NotImplementedError, match="io_threads"):
        ClientOptions.from_arguments(io_threads=True)
    with pytest.raises(NotImplementedError, match="chunking_enabled"):
        ProducerOptions.from_arguments(chunking_enabled=0)


@pytest.mark.parametrize("options", [ClientOptions, ProducerOptions])
def test_unknown_arguments(options):
    with pytest.raises(TypeError, match="unexpected argument 'nonsense'"):
        options.from_arguments(nonsense=1)


def test_bytes_schemas_are_the_default():
    for schema in (None, pulsar_fast.schema.BytesSchema(), pulsar.schema.BytesSchema()):
        assert ProducerOptions.from_arguments(schema=schema) == ProducerOptions()


INTEGERS = [
    (ClientOptions, "connection_timeout_ms", 1, 2**31 - 1),
    (ClientOptions, "memory_limit_bytes", 0, 2**63 - 1),
    (ClientOptions, "max_backoff_interval_ms", 100, 2**31 - 1),
    (ClientOptions, "initial_backoff_interval_ms", 1, 10000),
    (ClientOptions, "connections_per_broker", 1, 2**31 - 1),
    (ProducerOptions, "initial_sequence_id", 0, 2**63 - 2),
    (ProducerOptions, "send_timeout_millis", 0, 2**31 - 1),
    (ProducerOptions, "max_pending_messages", 0, 2**31 - 1),
    (ProducerOptions, "batching_max_messages", 2, 2**31 - 1),
    (ProducerOptions, "batching_max_allowed_size_in_bytes", 1, 2**31 - 1),
    (ProducerOptions, "batching_max_publish_delay_ms", 0, 2**31 - 1),
]


@pytest.mark.parametrize(("options", "name", "low", "high"), INTEGERS, ids=lambda value: str(value))
def test_integers(options, name, low, high):
    for value in (low, high):
        assert getattr(options.from_arguments(**{name: value}), name) == value
    for value in (low - 1, high + 1, -(2**70), 2**70):
        with pytest.raises(ValueError, match=name):
            options.from_arguments(**{name: value})
    for value in (True, 5.0, math.nan, "5", b"5", [5]):
        with pytest.raises(TypeError, match=f"{name} must be an int, not {type(value).__name__}"):
            options.from_arguments(**{name: value})


@pytest.mark.parametrize("name", ["operation_timeout_seconds", "keep_alive_interval_seconds"])
def test_seconds(name):
    for value in (1, 0.25, 2**31 - 1):
        assert getattr(ClientOptions.from_arguments(**{name: value}), name) == value
    for value in (0, -1, -0.5, 2**31, math.inf):
        with pytest.raises(ValueError, match=f"{name} must be above 0"):
            ClientOptions.from_arguments(**{name: value})
    for value in (True, math.nan, "5", None):
        with pytest.raises(TypeError, match=f"{name} must be a number of seconds"):
            ClientOptions.from_arguments(**{name: value})


def test_back_off_bounds_are_in_order():
    with pytest.raises(ValueError, match=r"initial_backoff_interval_ms .* max_backoff_interval_ms"):
        ClientOptions(initial_backoff_interval_ms=200, max_backoff_interval_ms=100)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ProducerOptions, "block_if_queue_full"),
        (ProducerOptions, "batching_enabled"),
        (ClientOptions, "use_tls"),
        (ClientOptions, "tls_allow_insecure_connection"),
        (ClientOptions, "tls_validate_hostname"),
    ],
)
def test_booleans(options, name):
    for value in (True, False):
        assert getattr(options.from_arguments(**{name: value}), name) is value
    for value in (0, 1, "yes"):
        with pytest.raises(TypeError, match=f"{name} must be a bool"):
            options.from_arguments(**{name: value})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ClientOptions, "listener_name"),
        (ClientOptions, "tls_trust_certs_file_path"),
        (ProducerOptions, "producer_name"),
    ],
)
def test_names(options, name):
    assert getattr(options.from_arguments(**{name: "é"}), name) == "é"
    for value in (5, b"x"):
        with pytest.raises(TypeError, match=f"{name} must be a str"):
            options.from_arguments(**{name: value})
    with pytest.raises(ValueError, match=f"{name} must not be empty"):
        options.from_arguments(**{name: ""})
    with pytest.raises(ValueError, match=f"{name} holds a surrogate"):
        options.from_arguments(**{name: "\ud800"})


def test_logger():
    logger = logging.getLogger("x")
    assert ClientOptions.from_arguments(logger=logger).logger is logger
    with pytest.raises(TypeError, match=r"logger must be a logging\.Logger, not str"):
        ClientOptions.from_arguments(logger="x")


def test_a_certificate_and_its_key_go_together():
    both = {"tls_certificate_file_path": "c", "tls_private_key_file_path": "k"}
    assert ClientOptions(**both).tls_private_key_file_path == "k"
    for name, value in both.items():
        with pytest.raises(ValueError, match="go together"):
            ClientOptions(**{name: value})


def test_a_certificate_is_named_once():
    authentication = AuthenticationTLS("c", "k")
    assert ClientOptions(authentication=authentication).identity == ("c", "k")
    assert ClientOptions(tls_certificate_file_path="c", tls_private_key_file_path="k").identity == ("c", "k")
    assert ClientOptions().identity is None
    for more in (
        {"tls_certificate_file_path": "c", "tls_private_key_file_path": "k"},
        {"ssl_context": ssl.create_default_context()},
    ):
        with pytest.raises(ValueError, match=f"^{next(iter(more))} and AuthenticationTLS both"):
            ClientOptions(authentication=authentication, **more)


def test_an_ssl_context_excludes_what_it_holds_itself():
    context = ssl.create_default_context()
    assert ClientOptions(ssl_context=context, use_tls=True).ssl_context is context
    for name, value in {
        "tls_trust_certs_file_path": "x",
        "tls_allow_insecure_connection": True,
        "tls_validate_hostname": False,
        "tls_minimum_version": ssl.TLSVersion.TLSv1_3,
        "tls_ciphers": "ECDHE+AESGCM",
    }.items():
        with pytest.raises(ValueError, match=f"{name} has no effect with ssl_context"):
            ClientOptions.from_arguments(ssl_context=context, **{name: value})
    with pytest.raises(TypeError, match=r"ssl_context must be an ssl\.SSLContext, not str"):
        ClientOptions.from_arguments(ssl_context="x")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_of_tls(version):
    assert ClientOptions.from_arguments(tls_minimum_version=version).tls_minimum_version is version


@pytest.mark.parametrize(
    "version", sorted({*ssl.TLSVersion} - {ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3})
)
def test_other_versions_of_tls(version):
    says = rf"^tls_minimum_version must be ssl\.TLSVersion\.TLSv1_2 or TLSv1_3, not {version.name}$"
    with pytest.raises(ValueError, match=says):
        ClientOptions.from_arguments(tls_minimum_version=version)


@pytest.mark.parametrize("version", ["TLSv1_3", 0x0304, ssl.PROTOCOL_TLS_CLIENT, None])
def test_what_is_no_version_of_tls(version):
    with pytest.raises(TypeError, match=r"^tls_minimum_version must be an ssl\.TLSVersion"):
        ClientOptions.from_arguments(tls_minimum_version=version)


def test_ciphers():
    for ciphers in ("ECDHE+AESGCM", "unknown:ECDHE+AESGCM", "DEFAULT", "HIGH:!aNULL:!eNULL"):
        assert ClientOptions.from_arguments(tls_ciphers=ciphers).tls_ciphers == ciphers
    for nonsense in ("nonsense", "TLS_AES_128_GCM_SHA256", "a\0b", "é"):
        with pytest.raises(ValueError, match=r"^tls_ciphers .* selects no cipher.*TLS 1\.2"):
            ClientOptions.from_arguments(tls_ciphers=nonsense)
    for open_to_all in ("ALL", "aNULL:@SECLEVEL=0", "ECDHE+AESGCM:eNULL", "NULL-SHA256"):
        with pytest.raises(
            ValueError, match=r"^tls_ciphers .* does not authenticate the broker or does not enc"
        ):
            ClientOptions.from_arguments(tls_ciphers=open_to_all)
    with pytest.raises(ValueError, match=r"^tls_ciphers is for TLS 1\.2, which tls_minimum_version excludes"):
        ClientOptions.from_arguments(tls_ciphers="DEFAULT", tls_minimum_version=ssl.TLSVersion.TLSv1_3)
    with pytest.raises(ValueError, match=r"^tls_ciphers must not be empty"):
        ClientOptions.from_arguments(tls_ciphers="")
    with pytest.raises(TypeError, match=r"^tls_ciphers must be a str, not list"):
        ClientOptions.from_arguments(tls_ciphers=["DEFAULT"])


def test_a_proxy():
    both = {"proxy_service_url": "pulsar+ssl://proxy.example:4443", "proxy_protocol": ProxyProtocol.SNI}
    assert ClientOptions.from_arguments(**both).proxy == ("proxy.example", 4443)
    assert ClientOptions().proxy is None
    for name, value in both.items():
        with pytest.raises(ValueError, match=r"^proxy_service_url and proxy_protocol go together"):
            ClientOptions(**{name: value})
    for url in ("pulsar://p:1", "http://p:1", "pulsar+ssl://p:1,q:1"):
        with pytest.raises(
            ValueError, match=r"^proxy_service_url .* must be that of one proxy, pulsar\+ssl://host:"
        ):
            ClientOptions(**{**both, "proxy_service_url": url})
    for url in ("", "proxy.example:4443", "pulsar+ssl://user:secret@p:1", "pulsar+ssl://p:0"):
        with pytest.raises(ValueError, match=r"^proxy_service_url ") as caught:
            ClientOptions(**{**both, "proxy_service_url": url})
        assert "secret" not in str(caught.value)
    with pytest.raises(TypeError, match=r"^proxy_service_url must be a str"):
        ClientOptions(**{**both, "proxy_service_url": ("p", 1)})
    for protocol in (0, "SNI"):
        with pytest.raises(TypeError, match=r"^proxy_protocol must be a pulsar_fast\.ProxyProtocol"):
            ClientOptions(**{**both, "proxy_protocol": protocol})


@pytest.mark.parametrize("value", [{"é": "\0😀", "": ""}, {}, None])
def test_properties(value):
    assert ProducerOptions.from_arguments(properties=value).properties == value


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([("a", "b")], TypeError),
        ({1: "b"}, TypeError),
        ({b"a": "b"}, TypeError),
        ({"a": None}, TypeError),
        ({"a": b"b"}, TypeError),
        ({"a": 1}, TypeError),
        ({"a": "\ud800"}, ValueError),
        ({"\ud800": "b"}, ValueError),
    ],
)
def test_bad_properties(value, error):
    with pytest.raises(error, match="properties"):
        ProducerOptions.from_arguments(properties=value)


def test_options_do_not_change_with_what_they_were_made_from():
    given = {"a": "1"}
    options = ProducerOptions(properties=given)
    given["a"] = "2"
    assert options.properties == {"a": "1"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.send_timeout_millis = 1
