"""Write the log of the example: pages of a handbook, each saved several times."""

from __future__ import annotations

import json
import random
from pathlib import Path

SAVES, PAGES = 3_000, 400
WORDS = ["events", "progress", "partition", "lease", "checkpoint", "replay", "inbox", "handler"]


def main() -> None:
    """Write ``pages.ndjson``, the same every time."""
    draw = random.Random(1)  # noqa: S311 not for secrets
    lines = []
    for number in range(SAVES):
        page = f"page-{draw.randint(1, PAGES)}"
        attributes = {"id": str(number), "source": "handbook", "subject": f"/pages/{page}"}
        data = {"page": page, "text": " ".join(draw.choices(WORDS, k=4))}
        lines.append(json.dumps({**attributes, "type": "docs.page-saved.v1", "data": data}))
    Path("pages.ndjson").write_text("\n".join(lines) + "\n", "utf-8")
    print(f"wrote {SAVES:,} saves of {PAGES} pages to pages.ndjson")


if __name__ == "__main__":
    main()
