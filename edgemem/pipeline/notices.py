"""What WhatsApp itself says in a chat's log: its notices, and its marks in a message's text.

Knows lines of text alone; their names and times are read by `importers`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["is_notice", "plain", "written"]

# The first line of a notice by WhatsApp, known by its form or by WhatsApp's words in English,
# German, Spanish, French, Italian, Portuguese and Dutch.
_NOTICE = re.compile(
    r"""<(?!/?[a-z][a-z0-9]*\s*/?>)[^<>]{2,99}>  # <Media omitted>, in any language; but not <br>
    | (?:media|image|video|audio|gif|sticker|document|photo)\ omitted
    | (?-i:null)  # of a message that is shown once
    | [A-Z]{3,5}-\d{8}-WA\d{4,}\.\w{2,5}\ \([^()]{2,40}\)  # IMG-….jpg (file attached)
    | .{1,200}\.\w{2,5}\ •\ .*  # Plan.pdf • 3 pages document omitted
    | .{1,200}\.\w{2,5}\ \((?:file\ attached|Datei\ angehängt|archivo\ adjunto|fichier\ joint
        |file\ allegato|arquivo\ anexado|ficheiro\ anexado|bestand\ bijgevoegd)\)
    | (?:this\ message\ was\ deleted|you\ deleted\ this\ message
        |diese\ nachricht\ wurde\ gelöscht|du\ hast\ diese\ nachricht\ gelöscht
        |se\ eliminó\ este\ mensaje|este\ mensaje\ fue\ eliminado|eliminaste\ este\ mensaje
        |ce\ message\ a\ été\ supprimé|vous\ avez\ supprimé\ ce\ message
        |questo\ messaggio\ è\ stato\ eliminato|hai\ eliminato\ questo\ messaggio
        |(?:essa|esta)\ mensagem\ foi\ apagada|você\ apagou\ esta\ mensagem
        |dit\ bericht\ is\ verwijderd|u\ hebt\ dit\ bericht\ verwijderd
        |missed\ (?:group\ )?(?:voice|video)\ call|verpasster\ (?:sprach|video)anruf
        |(?:llamada|videollamada)\ perdida|appel\ (?:vocal|vidéo)\ manqué
        |(?:chiamata|videochiamata)\ persa|(?:chamada|ligação)\ de\ (?:voz|vídeo)\ perdida
        |gemiste\ (?:spraak|video)oproep)\.?
    | (?:messages\ and\ calls\ are\ end-to-end\ encrypted
        |nachrichten\ und\ anrufe\ sind\ ende-zu-ende-verschlüsselt
        |los\ mensajes\ y\ las\ llamadas\ están\ cifrados\ de\ extremo\ a\ extremo
        |les\ messages\ et\ les\ appels\ sont\ chiffrés\ de\ bout\ en\ bout
        |i\ messaggi\ e\ le\ chiamate\ sono\ crittografati\ end-to-end
        |as\ mensagens\ e\ (?:as\ )?(?:chamadas|ligações)\ são\ protegidas
        |berichten\ en\ gesprekken\ zijn\ end-to-end\ versleuteld)\b.*
    | this\ message\ was\ deleted\ by\ admin\b.{0,99}
    | you\ deleted\ this\ message\ as\ admin
    | diese\ nachricht\ wurde\ von\ admin\ .{1,99}\ gelöscht\.?
    | waiting\ for\ this\ message(?:\.\ this\ may\ take\ a\ while)?\.?
    | warten?\ auf\ diese\ nachricht
        (?:\.\ (?:dies|das)\ kann\ (?:etwas|einen\ moment|eine\ weile)\ dauern)?\.?""",
    re.X | re.I,
)
# A name is cut at a colon within quotation marks in `Ruth created group "Brandts: family"`.
_OPENED = re.compile(r"""(?P<before>.*)\ (?:"|“|„|«\ ?)[^"“”„«»]+""", re.X)
_CLOSED = re.compile(r"""[^"“”„«»]*["”“»](?P<after>.*)""")
_ABOUT_GROUP = re.compile(
    r"""\b(?:created|changed|erstellt|geändert|creó|creaste|cambió|cambiaste|créé|modifié
    |changé|creato|modificato|cambiato|criou|mudou|alterou|gemaakt|aangemaakt|gewijzigd)\b""",
    re.X | re.I,
)
_EDITED = re.compile(
    r"<(?=[^<>]*\b(?:message|nachricht|mensaje|messaggio|mensagem|bericht)\b)"
    r"[^<>]*\b(?:edited|bearbeitet|editó|editad[oa]|modificato|modifié|bewerkt)\b[^<>]*>",
    re.I,
)
_MARK = "\u200e"
"""iOS puts it before what WhatsApp itself says: `Name: <mark>image omitted`."""
_OTHER_MARKS = re.compile(rf"(?<!: ){_MARK}(?!<)")
_INVISIBLE = dict.fromkeys(map(ord, "\u200f\u202a\u202c\ufeff")) | {0x202F: " ", 0xA0: " "}


def plain(text: str) -> str:
    """A log without the invisible characters that stand for nothing."""
    return _OTHER_MARKS.sub("", text.translate(_INVISIBLE))


def written(lines: Sequence[str]) -> str:
    """The text of a message without WhatsApp's notices; "" if nothing is left.

    The notice of a photo is the first line; the photo's caption follows in other lines.
    """
    first, rest = lines[0], "\n".join(lines[1:])
    notice = first.startswith(_MARK) or _NOTICE.fullmatch(first.strip())
    text = (rest if notice else f"{first}\n{rest}").strip()
    before, bracket, last = text.rpartition("<")  # "… <This message was edited>", or a file of iOS
    marked = before.endswith(_MARK) and last.endswith(">")
    if len(last) < 100 and (marked or _EDITED.fullmatch(bracket + last)):
        text = before
    return text.replace(_MARK, "").strip()


def is_notice(name: str, text: str) -> bool:
    """Whether a name and a text are a notice of what was done to a group."""
    opened, closed = _OPENED.fullmatch(name), _CLOSED.fullmatch(text)
    if not (opened and closed):
        return False
    last = closed["after"].split()[-1:]  # the verb, in German and Dutch
    return _ABOUT_GROUP.search(" ".join([opened["before"], *last])) is not None
