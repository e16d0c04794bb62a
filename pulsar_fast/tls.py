"""TLS between the socket and the protocol: whom to trust, the handshake, and the bytes after it."""

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import Callable
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path

from ._core import Transport, fork_count
from .bounds import TimeIsUp, within
from .dialer import Dial, dial, host_and_port
from .exceptions import ConnectError
from .hosts import Host
from .options import ClientOptions
from .service_url import ServiceUrl

__all__ = ["PeerNotTrusted", "TlsDialer", "TlsTransport", "dial_for"]

BURST = 256 * 1024
"""Bytes encrypted at once; nothing more is taken before those are gone."""
_READ_SIZE = 64 * 1024
_TLS_ONLY = (
    "ssl_context",
    "tls_trust_certs_file_path",
    "tls_certificate_file_path",
    "tls_private_key_file_path",
    "tls_allow_insecure_connection",
    "tls_minimum_version",
    "tls_ciphers",
    "proxy_service_url",
)


class PeerNotTrusted(ConnectError):
    """The certificate of the peer is not accepted: trying again unchanged is of no use."""

    retriable = False


def dial_for(url: ServiceUrl, options: ClientOptions) -> Dial:
    """How a client connects. Raises ValueError for options that do not go with the URL, and for unusable files."""
    if url.tls:
        return TlsDialer(options, dial if options.proxy is None else _dial_through(options.proxy, url))
    for option in fields(options):
        if option.name in _TLS_ONLY and getattr(options, option.name) != option.default:
            raise ValueError(f"{option.name} is for TLS: use a pulsar+ssl:// service URL (or use_tls=True)")
    if options.identity is not None:
        raise ValueError("AuthenticationTLS is for TLS: use a pulsar+ssl:// service URL (or use_tls=True)")
    return dial


def _dial_through(proxy: Host, url: ServiceUrl) -> Dial:
    """Dials the proxy, whichever broker is meant: the name in the TLS handshake tells it."""
    if url.is_http:
        raise ValueError(
            "proxy_service_url needs a pulsar+ssl:// service URL: HTTP does not go through the proxy"
        )
    for host, _ in url.hosts:
        if _is_address(host):
            raise ValueError(
                f"proxy_service_url needs names in service_url: SNI carries no address, such as {host}"
            )

    async def dial_proxy(host: str, port: int, timeout: float) -> Transport:
        broker = host_and_port((host, port))
        if _is_address(host):
            raise ConnectError(f"the proxy cannot be told of {broker}: SNI carries no address, only a name")
        try:
            return await dial(*proxy, timeout)
        except ConnectError as error:
            raise ConnectError(f"no way to {broker} through the proxy: {error.message}") from error

    return dial_proxy


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class TlsDialer:
    """Dials, then shakes hands with whoever is there. Belongs to the loop, like what it dials.

    The certificate files are read again for each connection. Sessions are resumed for each host, as long as the
    files stay the same. Raises ValueError if the files cannot be used.
    """

    def __init__(self, options: ClientOptions, dial: Dial = dial) -> None:
        self._options = options
        self._dial = dial
        self._digest: bytes | None = None
        self._refresh()

    async def __call__(self, host: str, port: int, timeout: float) -> Transport:
        """A connection past its TLS handshake, within `timeout` seconds. Raises `ConnectError`, which says why not."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        where = host_and_port((host, port))
        if self._options.proxy is not None:
            where += f" through the proxy {host_and_port(self._options.proxy)}"
        below = await self._dial(host, port, timeout)
        try:
            transport = self._over(below, host, port)
            await within(ends - loop.time(), transport.shake_hands())
        except TimeIsUp:
            below.close()
            raise ConnectError(
                f"no TLS with {where} within {timeout:g} s; {_question(self._options)}"
            ) from None
        except (OSError, ValueError) as error:
            below.close()
            kind = PeerNotTrusted if isinstance(error, ssl.SSLCertVerificationError) else ConnectError
            raise kind(f"no TLS with {where}: {_explained(error, self._options)}") from error
        except BaseException:
            below.close()
            raise
        return transport

    def _over(self, below: Transport, host: str, port: int) -> "TlsTransport":
        self._refresh()
        sessions = self._sessions
        session = sessions.pop((host, port), None)  # a ticket is good for one connection

        def keep(fresh: ssl.SSLSession) -> None:
            sessions[host, port] = fresh

        return TlsTransport(below, self._context, host, session, keep, self._options)

    def _refresh(self) -> None:
        """Build the context, if the files have changed; sessions end with it, so that new certificates count."""
        digest = _digest(self._options)
        if digest == self._digest:
            return
        self._context = self._options.ssl_context or _make_context(self._options)
        self._digest = digest
        self._sessions: dict[tuple[str, int], ssl.SSLSession] = {}


class TlsTransport(Transport):
    """TLS over another transport, which it owns. What was taken is encrypted at once, and kept until it is gone."""

    def __init__(
        self,
        below: Transport,
        context: ssl.SSLContext,
        host: str,
        session: ssl.SSLSession | None,
        on_session: Callable[[ssl.SSLSession], None],
        options: ClientOptions,
    ) -> None:
        self.most = BURST
        self._below = below
        self._options = options
        self._on_session = on_session
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_hostname=host.rstrip("."),  # certificates spell a complete name without its dot
            session=session,
        )
        self._ciphertext = b""
        self._failure: OSError | None = None
        self._ended = False
        self._reader: Callable[[], object] | None = None
        self._writer: Callable[[], object] | None = None
        self._watches_writing = False
        self._forks = fork_count()

    async def shake_hands(self) -> None:
        """Raises `OSError` (that is what `ssl.SSLError` is)."""
        readable = asyncio.Event()
        self.watch_reading(readable.set)
        while not self._advance():
            await readable.wait()
            readable.clear()
            if self._failure is not None:
                raise self._failure
            self._fill()

    def _advance(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                self._flush()  # tells the peer why
            raise
        self._flush()
        return True

    # --- the verbs

    def take(self, chunks: list[bytes]) -> int:
        if not self._flush():
            return -1
        try:
            taken = self._tls.write(b"".join(chunks))
        except ssl.SSLError as error:
            raise self._as_lost(error) from error
        self._flush()
        return taken

    def give(self, limit: int) -> bytes | None:
        parts = []
        while limit and (part := self._decrypted(limit)):
            parts.append(part)
            limit -= len(part)
        if self._outgoing.pending:
            self._flush()  # TLS has answers of its own
        if parts:
            return b"".join(parts)
        if self._failure is not None:
            raise self._failure
        return b"" if self._ended else None

    def _decrypted(self, limit: int) -> bytes:
        """Up to so many bytes; none when there are none now, or none will come."""
        try:
            while True:
                try:
                    received = self._tls.read(limit)
                except ssl.SSLWantReadError:
                    if self._fill():
                        continue
                    return b""
                self._ended = not received
                return received
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        except OSError as error:
            self._fail(error)
        return b""

    def watch_reading(self, call: Callable[[], object]) -> None:
        self._reader = call
        self._below.watch_reading(self._on_readable)

    def watch_writing(self, call: Callable[[], object]) -> None:
        self._writer = call
        self._watch()

    def stop_watching_writing(self) -> None:
        self._writer = None
        self._watch()

    def close(self) -> None:
        self._reader = self._writer = None
        if self._forks == fork_count():  # the connection of a parent goes on
            with contextlib.suppress(OSError):
                self._take_leave()
        self._below.close()

    # --- below

    def _take_leave(self) -> None:
        session = self._tls.session
        if session is not None and session.has_ticket:
            self._on_session(session)
        if not self._ciphertext:  # else it would come in the middle of a record
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._below.take([self._outgoing.read()])

    def _fill(self) -> bool:
        """Take in ciphertext, or its end; False when there is nothing now."""
        received = self._below.give(_READ_SIZE)
        if received is None:
            return False
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()
        return True

    def _flush(self) -> bool:
        """Send what is encrypted; whether all of it is gone."""
        while self._ciphertext or self._outgoing.pending:
            self._ciphertext = self._ciphertext or self._outgoing.read()
            taken = self._below.take([self._ciphertext])
            if taken < 0:
                break
            self._ciphertext = self._ciphertext[taken:]
        self._watch()
        return not self._ciphertext

    def _watch(self) -> None:
        wanted = bool(self._ciphertext) or self._writer is not None
        if wanted == self._watches_writing:
            return
        self._watches_writing = wanted
        if wanted:
            self._below.watch_writing(self._on_writable)
        else:
            self._below.stop_watching_writing()

    def _on_readable(self) -> None:
        """What came behind the last bytes would not make the socket readable again, so it is asked for at once."""
        if self._reader is not None:
            self._reader()
        if self._reader is not None and (self._ended or self._failure is not None):
            self._reader()

    def _on_writable(self) -> None:
        try:
            gone = self._flush()
        except OSError as error:
            self._ciphertext = b""
            self._writer = None
            self._watch()
            self._fail(error)
            self._on_readable()
            return
        if gone and self._writer is not None:
            self._writer()

    def _fail(self, error: OSError) -> None:
        """The first failure says most; it is raised once everything that came before it is read."""
        if self._failure is None:
            self._failure = self._as_lost(error) if isinstance(error, ssl.SSLError) else error

    def _as_lost(self, error: ssl.SSLError) -> OSError:
        return ConnectionError(_explained(error, self._options))


def _digest(options: ClientOptions) -> bytes:
    """Of the contents of all files, whose change is noticed by it; an unreadable one counts as empty."""
    digest = hashlib.sha256()
    for path in (options.tls_trust_certs_file_path, *(options.identity or ())):
        content = b""
        if path is not None:
            with contextlib.suppress(OSError):
                content = Path(path).read_bytes()
        digest.update(b"%d:%s" % (len(content), content))
    return digest.digest()


def _make_context(options: ClientOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = options.tls_minimum_version
    if options.tls_ciphers is not None:
        context.set_ciphers(options.tls_ciphers)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.hostname_checks_common_name = False
    context.check_hostname = options.tls_validate_hostname and not options.tls_allow_insecure_connection
    if options.tls_allow_insecure_connection:
        context.verify_mode = ssl.CERT_NONE
    _load_trust(context, options.tls_trust_certs_file_path)
    if options.identity is not None:
        _load_identity(context, *options.identity)
    return context


def _load_trust(context: ssl.SSLContext, path: str | None) -> None:
    if path is not None:
        try:
            context.load_verify_locations(path)
        except OSError as error:
            raise ValueError(f"tls_trust_certs_file_path {path!r} cannot be used: {_words(error)}") from None
        return
    context.load_default_certs()
    if not context.cert_store_stats()["x509_ca"] and not _has_folder_of_authorities():
        with contextlib.suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())


def _has_folder_of_authorities() -> bool:
    """OpenSSL reads them one by one, when it meets what they have issued."""
    folder = ssl.get_default_verify_paths().capath
    try:
        return folder is not None and any(Path(folder).iterdir())
    except OSError:
        return False


def _load_identity(context: ssl.SSLContext, certificate: str, key: str) -> None:
    def refuse() -> str:  # without this OpenSSL would ask on the terminal
        raise ValueError(
            f"tls_private_key_file_path {key!r} is encrypted: decrypt it, or pass an ssl_context"
        )

    try:
        context.load_cert_chain(certificate, key, refuse)
    except OSError as error:
        raise ValueError(
            f"tls_certificate_file_path {certificate!r} with tls_private_key_file_path {key!r} "
            f"cannot be used: {_words(error)}"
        ) from None


def _words(error: BaseException) -> str:
    """What happened, without the line of OpenSSL's source that saw it."""
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if reason else str(getattr(error, "strerror", None) or error)


_NOT_TLS = {
    "WRONG_VERSION_NUMBER",
    "UNKNOWN_PROTOCOL",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "UNEXPECTED_MESSAGE",
}
_EXPIRED, _NOT_YET_VALID, _NAME, _ADDRESS = 10, 9, 62, 64  # of X509_V_ERR
_UNKNOWN_ISSUER = {2, 18, 19, 20, 21}


def _explained(error: BaseException, options: ClientOptions) -> str:
    """Which of name, issuer, time and protocol was wrong, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrust(error, options)
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, (ssl.SSLEOFError, ConnectionError)):
        return f"the peer broke off the handshake ({_words(error)}); {_question(options)}"
    if reason in _NOT_TLS:
        plain = "" if options.proxy else " A plain one needs pulsar:// or http://"
        return f"what answers does not speak TLS ({_words(error)}); {_question(options)}{plain}"
    if reason == "UNSUPPORTED_PROTOCOL":  # the broker answers with one that is older
        return f"{_no_common(options)} ({_words(error)})"
    if "UNRECOGNIZED_NAME" in reason:
        return f"nobody there goes by that name ({_words(error)}); {_question(options)}"
    if "ALERT" not in reason:
        return _words(error)
    what = "the certificate of this client" if _has_identity(options) else "a client without a certificate"
    refused = (
        f"the broker refuses {what} ({_words(error)}); give one that it trusts, "
        "in tls_certificate_file_path and tls_private_key_file_path"
    )
    if "HANDSHAKE_FAILURE" in reason:  # under TLS 1.2 it means either
        return f"{_no_common(options)}, or {refused}"
    if "PROTOCOL" in reason or "SECURITY" in reason:
        return f"{_no_common(options)} ({_words(error)})"
    return refused


def _question(options: ClientOptions) -> str:
    if options.proxy is not None:
        return "does the proxy lead that name to a broker's TLS port?"
    return "is it the broker's TLS port (6651 by default), with https:// its web one (8443)?"


def _no_common(options: ClientOptions) -> str:
    if options.ssl_context is not None:
        return "no TLS version and cipher that both ssl_context and the broker allow"
    least = options.tls_minimum_version.name.removeprefix("TLSv").replace("_", ".")
    chosen = "" if options.tls_ciphers is None else f" (of tls_ciphers {options.tls_ciphers!r})"
    return f"no TLS version ({least} at least) and cipher{chosen} that both sides allow"


def _has_identity(options: ClientOptions) -> bool:
    return options.identity is not None or options.ssl_context is not None


def _distrust(error: ssl.SSLCertVerificationError, options: ClientOptions) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code in (_NAME, _ADDRESS):
        return (
            f"{said} (only its subject alternative names count); "
            "connect by a name that it has, or turn tls_validate_hostname off"
        )
    if error.verify_code in _UNKNOWN_ISSUER:
        path = options.tls_trust_certs_file_path
        if options.ssl_context is not None:
            return f"its certificate has no issuer among the CAs of ssl_context ({said}); load its CA there"
        trusted = "the system's CAs" if path is None else repr(path)
        return (
            f"its certificate has no issuer among {trusted} ({said}); "
            "name the file with its CA in tls_trust_certs_file_path"
        )
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return f"{said}; the broker needs a new certificate (or the clock of this machine is wrong)"
    return f"its certificate is not accepted: {said}"
