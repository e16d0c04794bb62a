"""Two real Apache Pulsar brokers, which share ZooKeeper and a bookie."""

import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
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
    """Four servers on free loopback ports (0.8 GB of memory), whose data lasts from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self._resources = ExitStack()

    def start(self) -> None:
        """Start all and wait until both brokers answer look-ups.

        Raises:
            RuntimeError: one of them ended at once; the message holds the end of its log.
            TimeoutError: one of them is not ready after 90 s; likewise.
        """
        with ExitStack() as resources:
            zookeeper, bookie, *ports = (
                resources.enter_context(reserve_port()).getsockname()[1] for _ in range(6)
            )
            binary, web = ports[:2], ports[2:]
            self._metadata = f"zk:127.0.0.1:{zookeeper}"
            self._web_of = {
                f"pulsar://127.0.0.1:{port}": f"127.0.0.1:{web[i]}" for i, port in enumerate(binary)
            }
            self.service_url = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in binary)
            self.admin = Admin(f"http://127.0.0.1:{web[0]}")
            self._folder = Path(tempfile.mkdtemp(prefix="pulsar-fast-cluster-"))
            resources.callback(shutil.rmtree, self._folder)
            self._start_zookeeper(resources, zookeeper)
            self._prepare_metadata(web, binary)
            self._start_bookie(resources, bookie)
            with ThreadPoolExecutor() as pool:
                list(pool.map(partial(self._start_broker, resources), binary, web))
            self._resources = resources.pop_all()

    def stop(self) -> None:
        """Stop all and remove their data. Does nothing if it is not started."""
        self._resources.close()

    def move(self, topic: str) -> None:
        """Have the other broker serve a topic, whose namespace has one bundle, and all topics beside it."""
        owner = self.admin.owner(topic)
        (other,) = (web for url, web in self._web_of.items() if url != owner)
        namespace = topic.partition("://")[2].rpartition("/")[0]
        self.admin.put(f"/namespaces/{namespace}/{_WHOLE_RANGE}/unload?destinationBroker={other}")

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

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

    def _start_broker(self, resources: ExitStack, port: int, web: int) -> None:
        folder = self._folder / f"broker-{port}"
        settings: dict[str, str | int] = {
            "metadataStoreUrl": self._metadata,
            "configurationMetadataStoreUrl": self._metadata,
            "brokerServicePort": port,
            "webServicePort": web,
        }
        config = configured("broker.conf", folder, settings)
        server = JavaServer(folder, "org.apache.pulsar.PulsarBrokerStarter", ["--broker-conf", config])
        resources.callback(server.stop)
        server.start(lambda: _answers_lookups(Admin(f"http://127.0.0.1:{web}")), _START_TIMEOUT)


def _answers_lookups(admin: Admin) -> bool:
    """Later than the rest of the admin interface: the load manager must have found its leader."""
    try:
        admin.owner("persistent://public/default/ready")
    except (AdminError, OSError):
        return False
    return True
