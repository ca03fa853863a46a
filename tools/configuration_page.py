"""Writes docs/reference/configuration.md from the settings themselves: `python tools/configuration_page.py`; `--print` only shows it."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from dataclasses import MISSING
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "configuration.md"
sys.path.insert(0, str(PAGE.parents[2] / "src"))

from tandem.cli.configuration.entities import PROPERTIES  # noqa: E402 - the path comes first
from tandem.cli.configuration.more_engines import KEYS as ENGINE_KEYS  # noqa: E402
from tandem.cli.configuration.own_issuer import KEYS as OWN_KEYS  # noqa: E402
from tandem.cli.configuration.own_issuer import OwnIssuer  # noqa: E402
from tandem.cli.configuration.setting_types import SettingType, show_duration  # noqa: E402
from tandem.cli.configuration.settings import BASIC, CLUSTER, LIMITS, STORES, Setting  # noqa: E402
from tandem.cli.configuration.trusted_issuers import KEYS  # noqa: E402
from tandem.model.entity import QueueDescription, SubscriptionDescription, TopicDescription  # noqa: E402
from tandem.model.limits import Limits  # noqa: E402
from tandem.server.settings import ClusterSettings, EngineSettings, StoresSettings  # noqa: E402
from tandem.tokens.trust import TrustedIssuer  # noqa: E402

HEAD = """# Configuration

This page is generated from the settings in the source; `make docs` writes it again.

A setting is looked for on the command line, then in the environment, then in the file, then in the defaults. The file is
`tandem.toml` in the current directory, or the one named by `--config` or `TANDEM_CONFIG`. A file that ends in `.json` is read as the
`Config.json` of Microsoft's Service Bus emulator. Unknown keys are refused; every mistake is reported with file, line, key, what was found
and what is allowed, and the command ends with code 2. Paths in a file are relative to that file.

Durations are written as ISO 8601 (`"PT1M30S"`) or short (`"1m 30s"`).
"""

ENTITIES = """
## Entities

Queues, topics, subscriptions and rules in the file are created at start if they do not exist; those that exist are left as they are. One
namespace needs no name:

```toml
[[queue]]
name = "orders"
lock_duration = "30s"

[[topic]]
name = "events"

[[topic.subscription]]
name = "large"

[[topic.subscription.rule]]
name = "amount"
sql = "amount > 100"
action = "SET priority = 'high'"
```

Several are written as `[[namespace]]` with `name`, `hosts` (host names that lead to it) and everything else beneath:
`[[namespace.queue]]`, `[[namespace.topic]]`, `[[namespace.topic.subscription]]`, `[[namespace.topic.subscription.rule]]`,
`[[namespace.authorization_rule]]`. The first namespace also answers for every host that no other claims.

`locks_outlive_connections = true` on a namespace (at the top of a file that has only one) holds for all its entities that do not say it
themselves: see [locks](../guide/locks.md).

A rule has a `name` and either `sql` (with `sql_parameters` if it uses any), or `correlation`, a table with `correlation_id`, `message_id`,
`to`, `reply_to`, `label`, `session_id`, `reply_to_session_id`, `content_type` and `properties`; or neither, and then lets everything
through. `action` is optional. A subscription without rules gets `$Default`, which lets everything through.

A `[[relay]]` has a `name`, `requires_client_authorization` (`true` if it is not said: senders need a token) and `user_metadata`: see
[relays](../guide/relay.md).

An `authorization_rule`, on a namespace, queue, topic or relay, has `name`, `rights` (a list of `"Send"`, `"Listen"`, `"Manage"`) and
optionally `primary_key` and `secondary_key`; keys that are not given are made and kept in `keys.json` in the data directory (`tandem keys`
shows them).

| key | in Config.json | queue | topic | subscription | allowed | default |
|---|---|---|---|---|---|---|
"""

ISSUERS = """
## `[[trusted_issuer]]`

Whose tokens (JSON Web Tokens) the broker accepts beside self-signed ones: see [issued tokens](../guide/issuer.md). `issuer` and one of
`jwks_url` and `jwks_file` are needed.

```toml
[[trusted_issuer]]
issuer = "https://issuer.example/tandem/v2.0"
jwks_url = "https://issuer.example/tandem/discovery/v2.0/keys"

[[trusted_issuer.grant]]
subject = "shop"
rights = ["Send"]
entities = ["orders"]
```

A `[[trusted_issuer.grant]]` names its holder by exactly one of `subject` (the token's `sub`, `oid`, `azp` or `appid`), `group` (one of
`groups`) and `role` (one of `roles`, or a word of `scp`), and has `rights` (a list of `"Send"`, `"Listen"`, `"Manage"`). `entities` limits
it to these paths and what lies beneath them, `namespace` to one namespace.

| key | allowed | default | |
|---|---|---|---|
"""


OWN_ISSUER = """
## `[issuer]`

An [issuer of tokens](../guide/issuer.md) in the broker's own process, which the broker believes: its clients
(`tandem issuer client add`, with `--data` as the broker's) and its keys are kept in the data directory, its certificate is the broker's. An
empty `[issuer]` will do; it is read when the broker starts. A `[[issuer.grant]]` is written like a `[[trusted_issuer.grant]]`.

| key | allowed | default | |
|---|---|---|---|
"""


ENGINES = """
## `[[cluster.more_engines]]`

More databases that stores of a cluster live in: see [several engines](../guide/cluster.md#several-engines). `name`, `engine` and `stores`
are needed. Each is prepared once: `tandem cluster init --config tandem.toml`.

```toml
[cluster]
engine = "postgresql://tandem@pg1,pg2,pg3/tandem"
secret_file = "cluster.key"

[[cluster.more_engines]]
name = "second"
engine = "postgresql://tandem@pg4,pg5,pg6/tandem"
stores = [2, 3]
```

| key | allowed | default | |
|---|---|---|---|
"""


def page() -> str:
    parts = [HEAD, "\n## General\n\n", _table([s for s in BASIC if not s.section], {})]
    for section, about in (
        ("listen", "Where the broker listens."),
        ("log", "Lines for the operator, on standard error."),
        ("tls", "Without these, certificates are made in the data directory."),
    ):
        parts.append(f"\n## `[{section}]`\n\n{about}\n\n{_table([s for s in BASIC if s.section == section], {})}")
    parts.append(f"\n## `[stores]`\n\n{_summary(StoresSettings)}\n\n{_table(STORES, _field_docs(StoresSettings))}")
    parts.append(
        f"\n## `[cluster]`\n\n{_summary(ClusterSettings)} See [clusters](../guide/cluster.md).\n\n"
        f"{_table(CLUSTER, _field_docs(ClusterSettings))}"
    )
    parts.append(ENGINES + _issuers(EngineSettings, ENGINE_KEYS))
    parts.append(f"\n## `[limits]`\n\n{_summary(Limits)}\n\n{_table(LIMITS, _field_docs(Limits))}")
    parts.append(ENTITIES + _properties())
    parts.append(ISSUERS + _issuers(TrustedIssuer, KEYS))
    parts.append(OWN_ISSUER + _issuers(OwnIssuer, OWN_KEYS))
    return "".join(parts)


def _table(settings: list[Setting] | tuple[Setting, ...], docs: dict[str, str]) -> str:
    rows = ["| key | flag | environment | allowed | default | |", "|---|---|---|---|---|---|"]
    for setting in settings:
        about = setting.about or docs.get(setting.key, docs.get(setting.key + "_ms", ""))
        flag = f"`{setting.flag}`" if setting.flag else ""
        default = _shown(setting.default, "duration" in setting.kind.allowed)
        rows.append(f"| `{setting.key}` | {flag} | `{setting.environment}` | {setting.kind.allowed} | {default} | {about} |")
    return "\n".join(rows) + "\n"


def _properties() -> str:
    rows = []
    for item in PROPERTIES:
        marks, default = [], ""
        for description in (QueueDescription, TopicDescription, SubscriptionDescription):
            field = description.__dataclass_fields__.get(item.field)
            marks.append("yes" if field else "")
            if field:
                default = default or _shown(getattr(field.default, "value", field.default), "duration" in item.kind.allowed)
        rows.append(f"| `{item.key}` | `{item.emulator_key}` | {' | '.join(marks)} | {item.kind.allowed} | {default} |")
    return "\n".join(rows) + "\n"


def _issuers(settings: Any, keys: dict[str, tuple[str, SettingType]]) -> str:
    docs, rows = _field_docs(settings), []
    for key, (name, kind) in keys.items():
        default = settings.__dataclass_fields__[name].default
        shown = ", ".join(f"`{item}`" for item in default) if isinstance(default, tuple) else _shown(default, "duration" in kind.allowed)
        rows.append(f"| `{key}` | {kind.allowed} | {shown if default not in ('', MISSING) else ''} | {docs.get(name, '')} |")
    return "\n".join(rows) + "\n"


def _shown(value: object, duration: bool) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if duration and isinstance(value, int):
        return show_duration(value)
    return f"`{value}`"


def _summary(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").splitlines()[0]


def _field_docs(cls: type) -> dict[str, str]:
    """The texts that stand beneath the fields in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            docs[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return docs


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(page(), end="")
    else:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
