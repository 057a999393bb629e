"""All that the product knows of languages: English, and how to match queries in others.

English is in `en` (words, sentences, names, persons, what a question asks for), `en_calendar` (how
a day is written), `en_dates` with `en_tense` (relative dates), `en_days` (the days that a text
tells of, since when, plans that are moved), `en_asked_days` (which day a question is about, what
there is on some days), `en_intervals` (how long ago, which first, how old), `en_plain` (chat
spellings written out), `en_quotes` (what is quoted or taken back), `en_turns` (what a message takes
from the turns before it, or which item of a list), `en_whose` (whose life a question asks for, and
a text tells) and `en_facts` (what a fact says).
Other rooms use only the names in their `__all__`. A second language is a file beside each of these
with the same names, and the choice between them is made here. `other` tells whether a query is in
another language, cuts words into grams for it, and reads its dates. Outside this room only
`cloud/redact.py` and `cloud/names.py` read English: private data has forms of its own.

Knows texts and dates; no model, no store, no message.
"""

from edgemem.language import (
    en,
    en_asked_days,
    en_calendar,
    en_dates,
    en_days,
    en_facts,
    en_intervals,
    en_plain,
    en_quotes,
    en_turns,
    en_whose,
    other,
)
from edgemem.language.en import *  # noqa: F403
from edgemem.language.en_asked_days import *  # noqa: F403
from edgemem.language.en_calendar import *  # noqa: F403
from edgemem.language.en_dates import *  # noqa: F403
from edgemem.language.en_days import *  # noqa: F403
from edgemem.language.en_facts import *  # noqa: F403
from edgemem.language.en_intervals import *  # noqa: F403
from edgemem.language.en_plain import *  # noqa: F403
from edgemem.language.en_quotes import *  # noqa: F403
from edgemem.language.en_turns import *  # noqa: F403
from edgemem.language.en_whose import *  # noqa: F403
from edgemem.language.other import *  # noqa: F403

__all__ = [
    *en.__all__,
    *en_asked_days.__all__,
    *en_calendar.__all__,
    *en_dates.__all__,
    *en_days.__all__,
    *en_facts.__all__,
    *en_intervals.__all__,
    *en_plain.__all__,
    *en_quotes.__all__,
    *en_turns.__all__,
    *en_whose.__all__,
    *other.__all__,
]
