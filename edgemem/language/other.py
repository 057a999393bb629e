"""Languages other than English: whether a query is in one, and how its words are compared.

Nothing here knows the inflections and compounds of other languages, and Han, kana and Thai put no
space between words. So words are compared by their character n-grams (`grams`), which inflected
and compound words share.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import chain, pairwise

from edgemem.language.en import STOP_WORDS, words

__all__ = [
    "APOSTROPHES",
    "DIGRAPHS",
    "GRAMS_A_WORD",
    "KIN_ABROAD",
    "NAMED_ABROAD",
    "as_words",
    "grams",
    "is_other_language",
    "is_other_script",
    "is_unspaced",
    "joins_words",
    "name_forms",
    "undisguised",
]

GRAMS_A_WORD = 3
"""About how many grams correspond to one English word."""

NAMED_ABROAD = (
    r"(?:(?<!das )(?<!was )(?<!wie )hei(?:ß|ss)(?:t|e|en)|hie(?:ß|ss)(?:en)?|namens|mein name ist|"
    r"(?:se|me|te) llam(?:an?|o|as|aba)|mi nombre es|[sm]['’]appelle|(?:si|mi) chiam[ao]|"
    r"mon nom est|il mio nome è)"
)
"""A regular expression of what stands before a name in German, Spanish, French and Italian. It is
for text in any case."""


def _after(whose: str, kin: str) -> str:
    return rf"(?:{whose})\s(?:{'|'.join(kin.split())})"


KIN_ABROAD = "|".join(
    (
        # A noun has a capital in German, and stands here after a verb or at a clause's end ("Heute
        # hat mein Bruder Geburtstag"). Before its verb, at the sentence's start, it is a name.
        r"(?<![^.!?\n]\s)(?<!\w)"
        + _after(
            "[Mm]eine?|[Uu]nsere?|[Ii]hre?|[Ss]eine?",
            """Chefin Chef Bruder Schwester Mutter Mama Vater Papa Frau Mann Sohn Tochter Freundin
            Freund Kollegin Kollege Nachbarin Nachbar Onkel Tante Oma Opa Cousine Cousin Neffe
            Nichte Enkelin Enkel Schwager Schwägerin Ärztin Arzt Lehrerin Lehrer""",
        )
        + r"(?=\s\w+(?:\s\w+)?\s[a-zäöü])",
        _after(
            "[Mm]is?|[Tt]us?|[Ss]us?|[Nn]uestr[oa]s?",
            """jef[ea] herman[oa] madre padre mamá papá muj?er marido espos[oa] hij[oa] novi[oa]
            amig[oa] compañer[oa] vecin[oa] tí[oa] abuel[oa] prim[oa] sobrin[oa] niet[oa] cuñad[oa]
            suegr[oa] médic[oa] profesora?""",
        ),
        _after(
            "[Mm]on|[Mm]a|[Nn]otre",
            """frère sœur soeur mère père mari femme fils fille cheffe chef patronne patron
            collègue amie ami voisine voisin oncle tante cousine cousin""",
        ),
        _after(
            "[Mm]i[oa]|[Nn]ostr[oa]",
            """fratello sorella madre padre marito moglie figli[oa] capo collega amic[oa] vicin[oa]
            zi[oa] nonn[oa] cugin[oa]""",
        ),
    )
)
"""A regular expression of words for people by their relation to the speaker in these languages
("mi jefa"), where a capitalised word after them is a name."""

_GRAM = 4  # characters
_UNSPACED = re.compile(  # Thai, Lao, Burmese, Khmer, kana and Han; Hangul, whose words are short
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)
_PREFIXED = re.compile(r"[\u0590-\u08ff]")  # Hebrew and Arabic, whose "and", "to", "the" are joined
_LETTER = re.compile(r"[^\W\d_]")
_LATIN = re.compile(r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff]")
_NAME_LENGTHS = 2, 3, 4  # characters of names in scripts without spaces

# Common words of questions in German, Dutch, Swedish with Danish and Norwegian, Spanish,
# Portuguese, French, Italian, Polish and Turkish. Words that are also an English word, name or
# place ("los", "von", "dove") are left out.
_COMMON_WORDS = frozenset(
    """und nicht ist sind wie wer wo wann warum welche welcher welches welchen welchem woher wohin
    womit wofür wogegen wovor woraus wem wen wessen wurde wird werden hatte haben der das dem
    ein eine einen einem einer ich wir ihr sie mich mein meine meinem meiner auf aus bei vom zum zur
    für über sich nach
    het een niet zijn wat waar wanneer waarom welk welke mijn ik heeft naar voor ook hij zij jij wij
    heb hebt wordt gaat doet moet eet onze jouw
    och är inte vad vem var när varför hur vilken vilket jag mitt på av som och ikke hvad hvem hvor
    hvorfor hvordan jeg hva
    qué cuál cuáles quién quiénes cómo cuándo dónde adónde cuánto cuánta cuántos cuántas que una
    unos por para es está fue desde hasta
    os um uma não são onde quando porque quem qual quanto meu minha foi ele ela em
    où qui quel quelle quels quelles quand pourquoi combien une dans avec je elle ses était
    gli della dello dei perché quale quanti quante è sono mio mia nel
    nie kto gdzie kiedy dlaczego jaki jaka jakie który która się mój moja jestem czy
    bir nerede nasıl neden hangi benim mı değil için""".split()
)
_HASTY = frozenset(("wat", "wen"))
"""What and when, as English is typed in haste: they alone make no other language."""
_WAS_HAT = re.compile(r"\bwas (?:hat|habe|hast|macht)\b", re.I)  # "was" and "hat" are English, too
_ENGLISH_WORDS = STOP_WORDS - set("a am an as do has he i in me no on so to was will".split())
"""English stop words, without those that other languages have, too."""

APOSTROPHES = str.maketrans("’‘ʼ", "'''")
"""For `str.translate`: a phone's apostrophes become a keyboard's."""

DIGRAPHS = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "æ": "ae", "ø": "oe", "å": "aa"}
    | {"Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "Æ": "Ae", "Ø": "Oe", "Å": "Aa"}
)
"""For `str.translate`: letters as they are typed where a keyboard lacks them ("Mueller")."""

# Letters that look like Latin ones (Unicode's confusables.txt has them all; these suffice to write
# any word). What NFKD maps by itself (full-width, mathematical, accented letters) is not here.
_LOOKS_LIKE = APOSTROPHES | str.maketrans(
    "АВЕЅІЈКМНОРСТУХԚԜаесіјкморԛѕтухԁһԝьвнΑΒΕΖΗΙΚΜΝΟΡΤΥΧαεικνορτυχօոսհցɑɡıɩʏƅℓłŁøØđĐ",
    "ABESIJKMHOPCTYXQWaecijkmopqstyxdhwbbhABEZHIKMNOPTYXaeikvoptuxonuhgagiiybllLoOdD",
)
_ODD = re.compile(r"[^\t\n\r -~]+")


@lru_cache(16)
def undisguised(text: str) -> tuple[str, tuple[int, ...]]:
    """A text as a reader sees its letters, and the index in `text` of each resulting character.

    Invisible characters and accents are dropped, letters that look like Latin ones become Latin,
    and apostrophes become straight. The result is for comparing, not for showing. For printable
    ASCII it is `text` itself, without indices.
    """
    if _ODD.search(text) is None:
        return text, ()
    out: list[str] = []
    at: list[int] = []
    end = 0
    for run in (*_ODD.finditer(text), None):
        start = len(text) if run is None else run.start()
        out.append(text[end:start])
        at += range(end, start)
        end = start if run is None else run.end()
        for place in range(start, end):
            plain = [
                c
                for c in unicodedata.normalize("NFKD", text[place])
                if unicodedata.category(c) not in ("Cf", "Mn", "Cc") and c not in _BLANK
            ]
            out += plain
            at += [place] * len(plain)
    return "".join(out).translate(_LOOKS_LIKE), tuple(at)


_BLANK = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")  # letters without a shape


def is_unspaced(text: str) -> bool:
    """Whether a text has letters of a script that puts no space between words, or Hangul."""
    return _UNSPACED.search(text) is not None


def as_words(text: str, pattern: str) -> str:
    """The pattern of a text, made to match only where words begin and end.

    Scripts without spaces have no such bounds, and a Hebrew or Arabic word has none before it.
    """
    before = "" if joins_words(text) else r"(?<![^\W_])"
    after = "" if is_unspaced(text[-1:]) else r"(?![^\W_])"
    return f"{before}(?:{pattern}){after}"


def joins_words(text: str) -> bool:
    """Whether letters of another word may stand before a text's first letter."""
    return is_unspaced(text[:1]) or _PREFIXED.match(text) is not None


def is_other_script(text: str) -> bool:
    """Whether most letters of a text are not Latin."""
    letters = _LETTER.findall(text)
    return 2 * sum(map(bool, map(_LATIN.match, letters))) < len(letters)


def is_other_language(text: str) -> bool:
    """Whether a query is in another language.

    It is if it has more of other languages' common words than of English ones, or another script. A
    query of key words alone counts as English.
    """
    said = words(text)
    foreign = [word for word in said if word in _COMMON_WORDS]
    other = 0 if _HASTY.issuperset(foreign) else len(foreign)
    english = sum(word in _ENGLISH_WORDS for word in said)
    return other > english or is_other_script(text) or bool(_WAS_HAT.search(text))


def grams(word: str) -> list[str]:
    """The pieces by which a word is compared: "#word#", and each four characters in a row of it.

    In scripts without spaces: each character and each two in a row.
    """
    if _UNSPACED.search(word):
        return [*word, *map("".join, pairwise(word))]
    whole = f"#{word}#"
    starts = range(len(whole) - _GRAM + 1) if len(whole) > _GRAM else ()
    return [whole, *(whole[i : i + _GRAM] for i in starts)]


def name_forms(text: str) -> list[str]:
    """The words of a text that may name somebody, as they are and without a genitive's s.

    In scripts without spaces: any two to four characters in a row.
    """
    said = words(text)
    runs = _UNSPACED.findall(text)
    inside = (run[i : i + n] for run in runs for n in _NAME_LENGTHS for i in range(len(run)))
    return list(dict.fromkeys(chain(said, (w[:-1] for w in said if w.endswith("s")), inside)))
