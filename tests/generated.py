"""Writes what follows from the settings and from the chart's values: the tables of
docs/configuration.md and docs/helm.md, and values.schema.json. `python -m tests.generated`.
"""

from __future__ import annotations

from tests.config import setting_tables
from tests.deploy import chart_values


def main() -> None:
    setting_tables.PAGE.write_text(setting_tables.with_tables(setting_tables.PAGE.read_text()))
    chart_values.write()


if __name__ == "__main__":
    main()
