"""Real Apache Pulsar brokers apart from their ZooKeeper and bookie, which they share."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from pulsar_fast.embedded import reserve_port

from .admin import Admin, AdminError
from .jvm import JavaServer, accepts, configured, java

_START_TIMEOUT = 90  # of each server; all together take 15 s on two idle cores
_SMALL = ("-Xmx128m", "-XX:MaxDirectMemorySize=128m")
_DRIVERS = (
    "-Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
)
_WHOLE_RANGE = "0x00000000_0xffffffff"  # the bundle of a namespace that has one


class Cluster:
    """Servers on free loopback ports (0.8 GB of memory with two brokers), whose data lasts from ``start`` to ``stop``.

    Args:
        overrides: settings of the brokers on top of ``conf/broker.conf``.
        brokers: how many.
    """

    def __init__(self, overrides: Mapping[str, str | int] | None = None, *, brokers: int = 2) -> None:
        self._overrides = overrides or {}
        self._size = brokers
        self._resources = ExitStack()

    def start(self) -> None:
        """Start all and wait until every broker answers look-ups.

        Raises:
            RuntimeError: one of them ended at once; the message holds the end of its log.
            TimeoutError: one of them is not ready after 90 s; likewise.
        """
        with ExitStack() as resources:
            zookeeper, bookie, *ports = (
                resources.enter_context(reserve_port()).getsockname()[1] for _ in range(2 + 2 * self._size)
            )
            binary, web = ports[: self._size], ports[self._size :]
            self._zookeeper = ("127.0.0.1", zookeeper)
            self._metadata = f"zk:127.0.0.1:{zookeeper}"
            self.service_url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in binary)
            self.admin = Admin(f"http://127.0.0.1:{web[0]}")
            self._folder = Path(tempfile.mkdtemp(prefix="pulsar-fast-cluster-"))
            resources.callback(shutil.rmtree, self._folder)
            self._start_zookeeper(resources, zookeeper)
            self._prepare_metadata(web, binary)
            self._start_bookie(resources, bookie)
            self._brokers = [
                _Broker(self._folder / f"broker-{port}", self._metadata, port, web_port, self._overrides)
                for port, web_port in zip(binary, web, strict=True)
            ]
            for broker in self._brokers:
                resources.callback(broker.stop)
            with ThreadPoolExecutor() as pool:
                list(pool.map(_Broker.run, self._brokers))
            self._resources = resources.pop_all()

    def stop(self) -> None:
        """Stop all and remove their data. Does nothing if it is not started."""
        self._resources.close()

    def move(self, topic: str) -> None:
        """Have the other broker serve a topic, whose namespace has one bundle, and all topics beside it."""
        owner = self.admin.owner(topic)
        (other,) = (broker.web for broker in self._brokers if broker.url != owner)
        namespace = topic.partition("://")[2].rpartition("/")[0]
        self.admin.put(f"/namespaces/{namespace}/{_WHOLE_RANGE}/unload?destinationBroker={other}")

    def kill_and_restart(self, topic: str) -> float:
        """Kill the broker that serves a topic and, once it counts as dead, start it again on the same ports.

        (The session of the dead one takes 5 to 7 s to end. In that very moment no broker can start.)

        Returns when it answered a handshake again, in seconds of the monotonic clock. Raises as ``start`` does.
        """
        broker = self._broker(self.admin.owner(topic))
        broker.kill()
        deadline = time.monotonic() + _START_TIMEOUT
        while broker.web in self._sessions():
            if time.monotonic() > deadline:
                raise TimeoutError(f"a dead broker is still registered after {_START_TIMEOUT} s")
            time.sleep(0.1)
        return broker.run()

    @property
    def broker_urls(self) -> list[str]:
        """The ``pulsar://`` URL of each broker."""
        return [broker.url for broker in self._brokers]

    def web_url(self, broker_url: str) -> str:
        """The ``http://`` URL of a broker."""
        return f"http://{self._broker(broker_url).web}"

    def kill(self, broker_url: str) -> None:
        """End a broker at once (SIGKILL), for good; the admin calls go to the other one from now on."""
        (other,) = (broker.web for broker in self._brokers if broker.url != broker_url)
        self.admin = Admin(f"http://{other}")
        self._broker(broker_url).kill()

    def _broker(self, url: str) -> "_Broker":
        (broker,) = (broker for broker in self._brokers if broker.url == url)
        return broker

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _sessions(self) -> str:
        """The sessions that ZooKeeper knows, with what ends with each: the registrations of live brokers, too."""
        with socket.create_connection(self._zookeeper, timeout=10) as connection:
            connection.sendall(b"dump")
            with connection.makefile() as answer:
                return answer.read()

    def _start_zookeeper(self, resources: ExitStack, port: int) -> None:
        folder = self._folder / "zookeeper"
        config = configured("zookeeper.cfg", folder, {"clientPort": port, "dataDir": str(folder)})
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        server = JavaServer(folder, main, [config], _SMALL)
        resources.callback(server.stop)
        server.start(lambda: accepts(port), _START_TIMEOUT)

    def _prepare_metadata(self, web: list[int], binary: list[int]) -> None:
        arguments = [
            *("--cluster", "pair"),
            *("--metadata-store", self._metadata, "--configuration-metadata-store", self._metadata),
            *("--web-service-url", "http://" + ",".join(f"127.0.0.1:{port}" for port in web)),
            *("--broker-service-url", "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in binary)),
            *("--initial-num-transaction-coordinators", "1"),
        ]
        command = java(self._folder, "org.apache.pulsar.PulsarClusterMetadataSetup", arguments)
        setup = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_START_TIMEOUT,
        )
        if setup.returncode != 0:
            raise RuntimeError(
                f"the metadata could not be prepared; the output ends:\n{setup.stdout[-2000:]}"
            )

    def _start_bookie(self, resources: ExitStack, port: int) -> None:
        folder = self._folder / "bookie"
        settings: dict[str, str | int] = {
            "bookiePort": port,
            "metadataServiceUri": f"metadata-store:{self._metadata}",
            "journalDirectories": str(folder / "data"),
            "ledgerDirectories": str(folder / "data"),
        }
        config = configured("bookie.conf", folder, settings)
        main = "org.apache.bookkeeper.server.Main"
        server = JavaServer(folder, main, ["--conf", config], [*_SMALL, *_DRIVERS])
        resources.callback(server.stop)
        server.start(lambda: accepts(port), _START_TIMEOUT)


class _Broker(JavaServer):
    """One of the brokers."""

    def __init__(
        self, folder: Path, metadata: str, port: int, web: int, overrides: Mapping[str, str | int]
    ) -> None:
        self.url = f"pulsar://127.0.0.1:{port}"
        self.web = f"127.0.0.1:{web}"
        settings: dict[str, str | int] = {
            "metadataStoreUrl": metadata,
            "configurationMetadataStoreUrl": metadata,
            "brokerServicePort": port,
            "webServicePort": web,
            **overrides,
        }
        config = configured("broker.conf", folder, settings)
        super().__init__(folder, "org.apache.pulsar.PulsarBrokerStarter", ["--broker-conf", config])

    def run(self) -> float:
        """Returns when it first answered a handshake, in seconds of the monotonic clock."""
        admin = Admin(f"http://{self.web}")
        return self.start_broker(self.url, lambda: _answers_lookups(admin), _START_TIMEOUT)


def _answers_lookups(admin: Admin) -> bool:
    """Later than the rest of the admin interface: the load manager must have found its leader."""
    try:
        admin.owner("persistent://public/default/ready")
    except (AdminError, OSError):
        return False
    return True
