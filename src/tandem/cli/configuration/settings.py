"""The one place where settings are decided: flags, then TANDEM_* in the environment, then the file, then the defaults."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, cast

from tandem.cli.configuration.documents import Document, Section, read, show
from tandem.cli.configuration.entities import read_emulator, read_namespaces
from tandem.cli.configuration.more_engines import read_more_engines
from tandem.cli.configuration.own_issuer import OwnIssuer, read_own_issuer
from tandem.cli.configuration.setting_types import (
    DAY_MS,
    Choice,
    Duration,
    File,
    Flag,
    Integer,
    InvalidSetting,
    Many,
    Name,
    SettingType,
    Text,
)
from tandem.cli.configuration.trusted_issuers import read_trusted_issuers
from tandem.model.errors import ConfigurationError
from tandem.model.limits import STORES_MAX, Limits
from tandem.server.settings import ClusterSettings, Listener, NamespaceSettings, ServerSettings, StoresSettings, TlsSettings

DEFAULT_FILE: Final = "tandem.toml"
DEFAULT_DATA: Final = "tandem-data"
DEFAULT_PORTS: Final = (5672, 5671, 5300)
"""AMQP and everything else; where SDKs in TLS mode dial; the emulator's administration port."""
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting under all its names."""

    section: str
    key: str
    kind: SettingType
    flag: str = ""
    variable: str = ""
    default: object = None
    about: str = ""

    @property
    def environment(self) -> str:
        return self.variable or "TANDEM_" + (f"{self.section}_{self.key}" if self.section else self.key).upper()

    @property
    def path(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key


BASIC: Final = (
    Setting("", "data", File(), "--data", default=DEFAULT_DATA, about="Directory that holds journals, keys and certificates."),
    Setting("", "memory", Flag(), "--memory", default=False, about="Keep messages in memory only; nothing survives the process."),
    Setting("", "dev", Flag(), "--dev", default=False, about="Use the emulator's well-known key, allow faults, listen on loopback only."),
    Setting("", "faults", Flag(), "--faults", default=False, about="Allow faults to be injected over `/$tandem/faults`."),
    Setting(
        "",
        "key",
        Text(chars_max=256, allowed="a key of 1 to 256 characters"),
        "--key",
        about="Primary key of `RootManageSharedAccessKey`. Without it a random one is made and kept in the data directory.",
    ),
    Setting("", "node", Name(chars_max=20, plain=True), default="G0", about="UniqueNames this broker in tracking ids."),
    Setting(
        "",
        "drain_seconds",
        Integer(low=0, high=3_600),
        default=10,
        about="When it is told to stop: how long receivers may take to settle what they have in hand.",
    ),
    Setting(
        "",
        "tracing",
        Flag(),
        default=False,
        about="Send spans of messages that carry a trace context where `OTEL_EXPORTER_OTLP_ENDPOINT` says; needs the extra `otel`.",
    ),
    Setting("log", "format", Choice(("text", "json")), "--log-format", default="text", about="How lines on standard error are written."),
    Setting(
        "log", "level", Choice(("debug", "info", "warning", "error")), "--log-level", default="info", about="What is below is left out."
    ),
    Setting(
        "",
        "workers",
        Integer(low=1, high=64),
        "--workers",
        default=1,
        about="Processes behind the ports, each with some of the stores. More than one needs a data directory.",
    ),
    Setting(
        "",
        "relay_isolation",
        Choice(("shared", "process")),
        default="shared",
        about="`process`: one more worker answers HTTP and relays, and has no stores: nothing relayed passes through the loops of queues.",
    ),
    Setting(
        "listen",
        "host",
        Text(chars_max=255, allowed="a host name or address"),
        "--host",
        "TANDEM_HOST",
        LOOPBACK,
        "Where to listen; `0.0.0.0`: all of IPv4, `::`: all of IPv6.",
    ),
    Setting(
        "listen",
        "ports",
        Many(Integer(low=0, high=65_535), least=1),
        "--port",
        "TANDEM_PORT",
        list(DEFAULT_PORTS),
        "Every port speaks AMQP, TLS, HTTP and WebSocket. 0 asks the system for a free one.",
    ),
    Setting("tls", "certificate", File(), about="Own certificate (PEM, with its chain) instead of a generated one."),
    Setting("tls", "private_key", File(), about="Its private key (PEM, without password)."),
    Setting("tls", "ca", File(), about="What clients must trust, shown at start."),
    Setting(
        "tls",
        "names",
        Many(Text(chars_max=255, allowed="a host name or address")),
        default=[],
        about="More names for the generated certificate.",
    ),
)

_STORE_KINDS: Final[dict[str, tuple[str, SettingType]]] = {
    "count": ("--store-count", Integer(low=1, high=STORES_MAX)),
    "isolation": ("", Choice(("thread", "process"))),
    "fragments": ("", Integer(low=2, high=64)),
    "segment_bytes": ("", Integer(low=1_048_576, high=4_294_967_295)),
    "free_bytes_min": ("", Integer(low=0)),
    "audit_retention_ms": ("", Duration(0, 3650 * DAY_MS)),
    "stall_deadline_ms": ("", Duration(100, DAY_MS)),
}
STORES: Final = tuple(
    Setting("stores", field.name.removesuffix("_ms"), _STORE_KINDS[field.name][1], _STORE_KINDS[field.name][0], default=field.default)
    for field in fields(StoresSettings)
)
_ADDRESS: Final = Text(chars_max=300, allowed="host:port")
CLUSTER: Final = (
    Setting(
        "cluster",
        "engine",
        Text(chars_max=2_000, allowed="a connection string, postgresql://user@host1,host2/database"),
        "--cluster",
        "TANDEM_CLUSTER",
    ),
    Setting("cluster", "node", Name(chars_max=60, plain=True), "--node", about="This node's name. Without it: the host's."),
    Setting("cluster", "secret_file", File(), "--secret-file"),
    Setting("cluster", "listen", _ADDRESS, default=""),
    Setting("cluster", "advertise", _ADDRESS, default=""),
    Setting("cluster", "lease", Duration(500, 600_000), default=5_000),
    Setting("cluster", "durability", Choice(("quorum", "assumed")), default="quorum"),
    Setting("cluster", "stall_deadline", Duration(1_000, DAY_MS), default=15_000),
    Setting("cluster", "engine_bytes_max", Integer(low=0), default=0),
)
LIMITS: Final = tuple(Setting("limits", field.name, Integer(low=1), default=field.default) for field in fields(Limits))
ALL: Final = BASIC + STORES + CLUSTER + LIMITS


_FLAG_FIELDS: Final = {
    "listen.host": "host",
    "stores.count": "store_count",
    "cluster.engine": "cluster",
    "cluster.secret_file": "secret_file",
    "cluster.node": "node",
}
"""Of settings whose name says less without their section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What stood on the command line; None and () mean "not said"."""

    config: Path | None = None
    port: tuple[int, ...] = ()
    host: str | None = None
    data: Path | None = None
    memory: bool | None = None
    dev: bool | None = None
    faults: bool | None = None
    key: str | None = None
    store_count: int | None = None
    log_format: str | None = None
    log_level: str | None = None
    cluster: str | None = None
    secret_file: Path | None = None
    node: str | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything decided, nothing made yet: keys and certificates are filled in when the broker starts."""

    server: ServerSettings
    file: Path | None
    root_key: str | None
    """Given by hand; None: the one in the data directory."""
    tls_names: tuple[str, ...]
    log_format: str = "text"
    log_level: str = "info"
    issuer: OwnIssuer | None = None
    """One in the same process; None: there is none, or somewhere else."""
    workers: int = 1
    relays_apart: bool = False
    """In a process of their own."""

    @property
    def is_several(self) -> bool:
        """More than one process serves."""
        return self.workers > 1 or self.relays_apart


def load(flags: Flags, environ: Mapping[str, str], directory: Path) -> Configuration:
    """Decide every setting. Raises ConfigurationError with the place, what was found and what is allowed."""
    document = _document(flags, environ, directory)
    layers = _Layers(flags, environ, document, directory)
    limits = _limits(layers)
    trusted = read_trusted_issuers(layers.root, layers.root.document.file.parent) if layers.root is not None else ()
    own_issuer = read_own_issuer(layers.root) if layers.root is not None else None
    namespaces = _namespaces(document, layers, limits)
    dev = bool(layers.value("", "dev"))
    server = ServerSettings(
        listeners=_listeners(layers, dev),
        data_dir=_data_dir(layers, flags),
        namespaces=namespaces,
        limits=limits,
        stores=_stores(layers),
        tls=_own_tls(layers),
        faults=dev or bool(layers.value("", "faults")),
        dev=dev,
        tracing=bool(layers.value("", "tracing")),
        drain_seconds=cast(int, layers.value("", "drain_seconds")),
        node=cast(str, layers.value("", "node")),
        trusted_issuers=trusted,
        cluster=_cluster(layers, tuple(namespace.name for namespace in namespaces)),
    )
    named = [host for namespace in namespaces for host in namespace.hosts]
    return Configuration(
        server=server,
        file=document.file if document else None,
        root_key=cast("str | None", layers.value("", "key")),
        workers=cast(int, layers.value("", "workers")),
        relays_apart=layers.value("", "relay_isolation") == "process",
        tls_names=(*cast("tuple[str, ...]", tuple(cast(Any, layers.value("tls", "names")))), *named),
        log_format=cast(str, layers.value("log", "format")),
        log_level=cast(str, layers.value("log", "level")),
        issuer=own_issuer,
    )


def quick_flags(arguments: list[str]) -> Flags | None:
    """The flags of `tandem serve`, read without the command-line library; None when that had better explain something."""
    kinds = {setting.flag: (setting.path, setting.kind) for setting in ALL if setting.flag}
    kinds["--config"] = ("config", File())
    kinds["--port"] = ("port", Integer(low=0, high=65_535))
    said: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        flag, separator, value = argument.partition("=")
        if flag not in kinds:
            return None
        path, kind = kinds[flag]
        field = _FLAG_FIELDS.get(path, path.replace(".", "_"))
        try:
            if isinstance(kind, Flag):
                if separator:
                    return None
                said[field] = True
                continue
            read = kind.read_text(value if separator else next(rest))
        except (InvalidSetting, StopIteration):
            return None
        if field == "port":
            read = (*said.get("port", ()), read)
        said[field] = read
    return Flags(**said)


def is_loopback(host: str) -> bool:
    if host.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Layers:
    """Looks a setting up where it was said with most authority, and remembers where that was."""

    def __init__(self, flags: Flags, environ: Mapping[str, str], document: Document | None, directory: Path) -> None:
        self._environ = environ
        self._directory = directory
        self._settings = {(setting.section, setting.key): setting for setting in ALL}
        self._flags: dict[str, object] = {
            "data": flags.data,
            "memory": flags.memory,
            "dev": flags.dev,
            "faults": flags.faults,
            "key": flags.key,
            "workers": flags.workers,
            "listen.host": flags.host,
            "listen.ports": flags.port or None,
            "stores.count": flags.store_count,
            "log.format": flags.log_format,
            "log.level": flags.log_level,
            "cluster.engine": flags.cluster,
            "cluster.secret_file": flags.secret_file,
            "cluster.node": flags.node,
        }
        self._file_directory = document.file.parent if document else directory
        self.root = document.section() if document and not _is_emulator(document) else None
        self._tables: dict[str, Section | None] = {"": self.root}
        self.more_engines: list[Section] = []
        """Tables of `cluster.more_engines`."""
        for name in ("listen", "log", "tls", "stores", "cluster", "limits"):
            self._tables[name] = self.root.table(name) if self.root else None
        for name, table in self._tables.items():
            if table is None:
                continue
            for setting in ALL:
                if setting.section == name:
                    table.has(setting.key)
            if name == "cluster":
                self.more_engines = table.tables("more_engines")
            if name:
                table.finish()

    def value(self, section: str, key: str) -> object:
        return self.found(section, key)[0]

    def found(self, section: str, key: str) -> tuple[object, str]:
        """The value, and the place that said it; an empty place means nobody did."""
        setting = self._settings[section, key]
        flag = self._flags.get(setting.path)
        if flag is not None:
            return self._rooted(self._read(setting, flag, setting.flag), self._directory), setting.flag
        variable = self._environ.get(setting.environment, "")
        if variable:
            place = f"environment {setting.environment}"
            return self._rooted(self._read_text(setting, variable, place), self._directory), place
        table = self._tables[section]
        if table is not None and table.has(key):
            return self._rooted(table.get(key, setting.kind), self._file_directory), table.place(key)
        default = setting.default
        return (self._directory / DEFAULT_DATA if setting.path == "data" else default), ""

    def _read(self, setting: Setting, value: object, place: str) -> object:
        if isinstance(value, Path):
            return value
        try:
            return setting.kind.read(value)
        except InvalidSetting:
            raise ConfigurationError(f"{place}: found {show(value)}; allowed is {setting.kind.allowed}") from None

    def _read_text(self, setting: Setting, value: str, place: str) -> object:
        try:
            return setting.kind.read_text(value)
        except InvalidSetting:
            raise ConfigurationError(f"{place}: found {show(value)}; allowed is {setting.kind.allowed}") from None

    @staticmethod
    def _rooted(value: object, directory: Path) -> object:
        return directory / value.expanduser() if isinstance(value, Path) else value


def _document(flags: Flags, environ: Mapping[str, str], directory: Path) -> Document | None:
    if flags.config is not None:
        return read(directory / flags.config.expanduser())
    if environ.get("TANDEM_CONFIG"):
        return read(directory / Path(environ["TANDEM_CONFIG"]).expanduser())
    found = directory / DEFAULT_FILE
    return read(found) if found.exists() else None


def _is_emulator(document: Document) -> bool:
    return document.file.suffix.casefold() == ".json"


def _namespaces(document: Document | None, layers: _Layers, limits: Limits) -> tuple[NamespaceSettings, ...]:
    if document is None:
        return (NamespaceSettings(),)
    if layers.root is None:
        namespaces = read_emulator(document.section(), limits)
    else:
        namespaces = read_namespaces(layers.root, limits)
        layers.root.finish()
    # The first answers for every host that nobody claims; the others can only be told apart by name.
    first, *others = namespaces
    return (first, *(other if other.hosts else replace(other, hosts=(f"{other.name}.localhost",)) for other in others))


def _listeners(layers: _Layers, dev: bool) -> tuple[Listener, ...]:
    host, host_place = cast("tuple[str, str]", layers.found("listen", "host"))
    ports, ports_place = cast("tuple[tuple[int, ...], str]", layers.found("listen", "ports"))
    if dev and not is_loopback(host):
        raise ConfigurationError(
            f'{host_place}: found "{host}"; with dev the key is known to everybody, so only loopback is allowed '
            f"({LOOPBACK}, ::1 or localhost). Leave out dev to serve others."
        )
    fixed = [port for port in ports if port]
    if len(set(fixed)) < len(fixed):
        raise ConfigurationError(f"{ports_place}: a port is named twice")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host  # as addresses of IPv6 are written in URLs
    return tuple(Listener(host=bare, port=port) for port in ports)


def _data_dir(layers: _Layers, flags: Flags) -> Path | None:
    if flags.memory and flags.data is not None:
        raise ConfigurationError("--memory: stands beside --data; give one of them")
    if layers.value("", "memory") and flags.data is None:
        return None
    data, place = cast("tuple[Path, str]", layers.found("", "data"))
    try:
        if data.exists() and not data.is_dir():
            raise ConfigurationError(f"{place or 'data'}: {data} is not a directory")
    except OSError as error:
        raise ConfigurationError(f"{place or 'data'}: {data} cannot be used: {error.strerror}") from error
    return data


def _own_tls(layers: _Layers) -> TlsSettings | None:
    certificate, place = cast("tuple[Path | None, str]", layers.found("tls", "certificate"))
    private_key, key_place = cast("tuple[Path | None, str]", layers.found("tls", "private_key"))
    if (certificate is None) != (private_key is None):
        said, other = (place, "private_key") if certificate is not None else (key_place, "certificate")
        raise ConfigurationError(f"{said}: needs tls.{other} as well")
    if certificate is None or private_key is None:
        return None
    return TlsSettings(certificate=certificate, private_key=private_key, ca=cast("Path | None", layers.value("tls", "ca")))


def _stores(layers: _Layers) -> StoresSettings:
    values: dict[str, Any] = {field.name: layers.value("stores", field.name.removesuffix("_ms")) for field in fields(StoresSettings)}
    return StoresSettings(**values)


def _cluster(layers: _Layers, namespaces: tuple[str, ...]) -> ClusterSettings | None:
    engine, place = cast("tuple[str | None, str]", layers.found("cluster", "engine"))
    if engine is None:
        said = [layers.found("cluster", key)[1] for key in ("node", "secret_file", "listen", "advertise")]
        said += [section.place() for section in layers.more_engines]
        if any(said):
            raise ConfigurationError(f"{next(filter(None, said))}: needs cluster.engine (--cluster) as well")
        return None
    if layers.value("", "memory"):
        raise ConfigurationError(f"{place}: stands beside memory; a cluster keeps its messages in its engine")
    secret_file = cast("Path | None", layers.value("cluster", "secret_file"))
    if secret_file is None:
        raise ConfigurationError(f"{place}: needs cluster.secret_file (--secret-file): the file that `tandem cluster init` was given")
    node = cast("str | None", layers.value("cluster", "node"))
    if node is None:
        import socket

        node = socket.gethostname().partition(".")[0][:60]
    rest: dict[str, Any] = {key: layers.value("cluster", key) for key in ("listen", "advertise", "durability", "engine_bytes_max")}
    rest["more_engines"] = read_more_engines(layers.more_engines, engine, cast(int, layers.value("stores", "count")), namespaces)
    lease_ms, stall_ms = cast(int, layers.value("cluster", "lease")), cast(int, layers.value("cluster", "stall_deadline"))
    return ClusterSettings(engine=engine, node=node, secret_file=secret_file, lease_ms=lease_ms, stall_deadline_ms=stall_ms, **rest)


def _limits(layers: _Layers) -> Limits:
    values: dict[str, Any] = {field.name: layers.value("limits", field.name) for field in fields(Limits)}
    limits = Limits(**values)
    if limits.message_bytes_max > limits.message_bytes_ceiling:
        _, place = layers.found("limits", "message_bytes_max")
        raise ConfigurationError(
            f"{place or 'limits.message_bytes_max'}: found {limits.message_bytes_max}; "
            f"allowed is at most limits.message_bytes_ceiling, which is {limits.message_bytes_ceiling}"
        )
    if limits.drop_silent_peer_after_ms < limits.idle_timeout_ms:
        _, place = layers.found("limits", "drop_silent_peer_after_ms")
        raise ConfigurationError(
            f"{place or 'limits.drop_silent_peer_after_ms'}: found {limits.drop_silent_peer_after_ms}; "
            f"allowed is at least limits.idle_timeout_ms, which is {limits.idle_timeout_ms}"
        )
    return limits
