"""Made-up texts for the redaction bench and its test: some with private values, some without.

Knows how people write e-mail addresses, numbers, addresses, keys and names; knows nothing of how
redaction finds them. Seeded and deterministic. All people and numbers are invented; phone numbers,
cards and accounts are random digits with the right check digits.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

FIRST = (
    "Priya Tomas Ingrid Kwame Yuki Leila Anneliese Bjørn Zofia Ravi Siobhán Emeka Noor Dmitri "
    "Chloé Hana Viktor Oksana Thandiwe Rohan Marisol Elif Pavel Aiko Lars Niamh Giorgio Xiomara "
    "Søren Ayşe Jean-Luc Anna-Lena Ekaterina Kofi Mirela Tariq Ottoline Casimir Wanjiru "
    "Anahit Rose Mark Will "
    "Grace Hope Ximena Yusuf Bogdan Ilse Femke Nadia Piotr Quentin Ursula Zainab Håkon Ludmila"
).split()
LAST = (
    "Okafor Lindqvist Marchetti Nakamura O'Rourke Kowalczyk Haddad Petrov Delacroix Van-Dyke "
    "Mbeki Strand Iyer Castellanos Björk Yilmaz Novák Achterberg Farouk Zhang Whitlock "
    "Ferreira Osei Lund "
    "Ramaswamy Dubois Thornbury Eze Kaplan Sørensen"
).split()
STREETS = "Baker Maple Elm Victoria Mill Station Kings Cedar Lakeview Chestnut Bridge".split()
TYPES = "Street St Road Rd Avenue Ave Lane Drive Dr Blvd Court Way Close Terrace Crescent".split()
TOWNS = "Springfield Leeds Portland Exeter Dayton Norwich Tacoma Bristol Boulder Galway".split()
STATES = "OR WA OH CO TX NY MA IL CA GA".split()
GERMAN = "Hauptstraße Lindenallee Bahnhofstr. Goethestraße Mühlenweg Rosengasse Marktplatz".split()
GERMAN_TOWNS = "Berlin Köln Hamburg Leipzig Graz Bern".split()
FRENCH = ["rue de la Paix", "avenue Victor Hugo", "boulevard Voltaire", "rue des Lilas"]
OTHERS = [
    "Via Garibaldi {n}", "Calle Mayor {n}", "Keizersgracht {n}", "Storgatan {n}",
    "Rua Augusta {n}", "ul. Długa {n}", "Avenida del Puerto {n}",
]  # fmt: skip
DOMAINS = "mail.com example.org uni-bonn.de post.co.uk firma.io web.com.br".split()
# Lengths of national account numbers, for IBANs.
BBANS = {"DE": 18, "FR": 23, "GB": 18, "NL": 14, "ES": 20, "IT": 23, "CH": 17, "NO": 11, "PL": 24}


@dataclass(frozen=True, slots=True)
class Case:
    """A text and its context.

    values: the private values in the text, none if it is ordinary. stored: other texts in the
    store. speakers: the names of the speakers in the store.
    """

    kind: str
    text: str
    values: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()


# -- values --------------------------------------------------------------------------------------


def digits(rng: random.Random, count: int, first: str = string.digits) -> str:
    return rng.choice(first) + "".join(rng.choices(string.digits, k=count - 1))


def email(rng: random.Random) -> str:
    a, b = rng.choice(FIRST).lower(), rng.choice(LAST).lower().replace("'", "")
    user = rng.choice([f"{a}.{b}", f"{a}{digits(rng, 2)}", f"{a[0]}_{b}", f"{b}+shop", f"{a}-{b}"])
    domain = rng.choice(DOMAINS)
    if rng.random() < 0.15:
        user = user.encode("ascii", "ignore").decode() or "post"
        at, dot = rng.choice([(" at ", " dot "), (" [at] ", " [dot] "), ("(at)", "(dot)")])
        return user.replace(".", dot) + at + domain.replace(".", dot)
    return f"{user}@{domain}".upper() if rng.random() < 0.05 else f"{user}@{domain}"


def phone(rng: random.Random) -> str:
    area, mid, end = digits(rng, 3, "2345679"), digits(rng, 3, "2345679"), digits(rng, 4)
    forms: list[Callable[[], str]] = [
        lambda: f"({area}) {mid}-{end}",
        lambda: f"{area}-{mid}-{end}",
        lambda: f"{area}.{mid}.{end}",
        lambda: f"{area} {mid} {end}",
        lambda: f"+1 {area} {mid} {end}",
        lambda: f"+1-{area}-{mid}-{end}",
        lambda: f"1-{area}-{mid}-{end}",
        lambda: f"+1{area}{mid}{end}",
        lambda: f"({area}) {mid}-{end} ext. {digits(rng, 3)}",
        lambda: f"+44 7{digits(rng, 3)} {digits(rng, 6)}",
        lambda: f"07{digits(rng, 3)} {digits(rng, 3)} {digits(rng, 3)}",
        lambda: f"07{digits(rng, 9)}",
        lambda: f"020 7{digits(rng, 3)} {digits(rng, 4)}",
        lambda: f"+49 (0)30 {digits(rng, 7, '123456789')}",
        lambda: f"0049 171 {digits(rng, 7)}",
        lambda: f"030/{digits(rng, 7, '123456789')}",
        lambda: f"+33 6 {' '.join(digits(rng, 2) for _ in range(4))}",
        lambda: f"06.{'.'.join(digits(rng, 2) for _ in range(4))}",
        lambda: f"+47 {digits(rng, 3)} {digits(rng, 2)} {digits(rng, 3)}",
        lambda: f"+91 {digits(rng, 5, '789')}-{digits(rng, 5)}",
        lambda: f"+81-90-{digits(rng, 4)}-{digits(rng, 4)}",
        lambda: f"+55 11 9{digits(rng, 4)}-{digits(rng, 4)}",
    ]
    return rng.choice(forms)()


def luhn(body: str) -> str:
    """The digits of `body` followed by their Luhn check digit."""
    total = 0
    for place, digit in enumerate(reversed(body)):
        value = int(digit) * (1 if place % 2 else 2)
        total += value - 9 if value > 9 else value
    return body + str(-total % 10)


def card(rng: random.Random) -> str:
    start, length = rng.choice([("4", 16), ("51", 16), ("2221", 16), ("37", 15), ("6011", 16)])
    number = luhn(start + digits(rng, length - len(start) - 1))
    groups = [number[:4], number[4:10], number[10:]] if length == 15 else [
        number[i : i + 4] for i in range(0, 16, 4)
    ]  # fmt: skip
    return rng.choice(["", " ", " ", "-"]).join(groups)


def iban(rng: random.Random) -> str:
    country = rng.choice(list(BBANS))
    bban = digits(rng, BBANS[country])
    if country in ("GB", "NL"):
        bban = "".join(rng.choices(string.ascii_uppercase, k=4)) + bban[4:]
    turned = "".join(str(int(c, 36)) for c in f"{bban}{country}00")
    number = f"{country}{98 - int(turned) % 97:02d}{bban}"
    if rng.random() < 0.6:
        number = " ".join(number[i : i + 4] for i in range(0, len(number), 4))
    return number.lower() if rng.random() < 0.05 else number


def address(rng: random.Random) -> str:
    number, street = digits(rng, rng.randint(1, 4), "123456789"), rng.choice(STREETS)
    zip_us, town = digits(rng, 5), rng.choice(TOWNS)
    post = f"{rng.choice(['LS', 'NR', 'EX', 'BS'])}{rng.randint(1, 9)} {digits(rng, 1)}XE"
    forms = [
        f"{number} {street} {rng.choice(TYPES)}",
        f"{number} {street} {rng.choice(TYPES)}, {rng.choice(TOWNS)}",
        f"{number} {street} {rng.choice(TYPES)}, {town}, {rng.choice(STATES)} {zip_us}",
        f"{number} N {street} {rng.choice(TYPES)}, Apt {rng.randint(1, 30)}B",
        f"{number}{rng.choice('AB')} {street} {rng.choice(TYPES)}, {rng.choice(TOWNS)} {post}",
        f"Flat {rng.randint(1, 90)}, {number} {street} {rng.choice(TYPES)}",
        f"{rng.choice(GERMAN)} {rng.randint(1, 199)}",
        f"{rng.choice(GERMAN)} {rng.randint(1, 199)}, {zip_us} {rng.choice(GERMAN_TOWNS)}",
        f"{rng.randint(1, 199)} {rng.choice(FRENCH)}, {zip_us} Lyon",
        f"{rng.randint(1, 199)}, {rng.choice(FRENCH)}",
        rng.choice(OTHERS).format(n=rng.randint(1, 199)),
        f"PO Box {digits(rng, 4)}",
        f"{digits(rng, 2, '123456789')} 5th Avenue",
    ]
    return rng.choice(forms)


def secret(rng: random.Random) -> tuple[str, str]:
    """A sentence with {} in place of a secret, and the secret."""
    letters = string.ascii_letters + string.digits

    def some(count: int, of: str = letters) -> str:
        return "".join(rng.choices(of, k=count))

    words = "swordfish dragonfly hunter2 Tr0ub4dor&3 correcthorse qwerty!9 P@ssw0rd"
    word = rng.choice(words.split())
    label = rng.choice(["password", "Password", "passphrase", "wifi password", "login password"])
    forms = [
        (f"my {label} is {{}}", word),
        (f"My {label} is still {{}}.", word),
        (f"{label}: {{}}", word),
        (f"the {label} for the router was \"{{}}\"", f"{some(4)} {some(5)}"),
        ("I changed it, the new password is {}, tell nobody", some(10, letters + "!$%&")),
        ("the pin is {} for both cards", digits(rng, 4)),
        ("PIN: {}", digits(rng, 4)),
        ("door code: {}", digits(rng, 5)),
        ("the alarm code is {} by the way", digits(rng, 4)),
        ("OPENAI_API_KEY={}", f"sk-{some(40)}"),
        ("use {} as the key", f"sk-proj-{some(48)}"),
        ("export GITHUB_TOKEN={}", f"ghp_{some(36)}"),
        ("the token github_pat is {}", f"github_pat_{some(22)}_{some(30)}"),
        ("aws id {} works", f"AKIA{some(16, string.ascii_uppercase + string.digits)}"),
        ("aws_secret_access_key = {}", some(40)),
        ("maps key {} please", f"AIza{some(35)}"),
        ("slack {} expired", f"xoxb-{digits(rng, 11)}-{some(24)}"),
        ("stripe {} is live", f"sk_live_{some(24)}"),
        ("Authorization: Bearer {}", some(32)),
        ("jwt {}", f"eyJ{some(20)}.eyJ{some(40)}.{some(43)}"),
        ("postgres://app:{}@db.example.org/prod", some(12)),
        ("api key: {}", some(24, "0123456789abcdef")),
        ("the hash key {} of the backup", some(40, "0123456789abcdef")),
        ("\"client_secret\": \"{}\"", some(28)),
        ("{}", f"-----BEGIN RSA PRIVATE KEY-----\n{some(64)}\n{some(64)}\n"
               "-----END RSA PRIVATE KEY-----"),
        ("{}", f"-----BEGIN OPENSSH PRIVATE KEY-----\n{some(70)}\n"
               "-----END OPENSSH PRIVATE KEY-----"),
        ("CVV {} and", "is " + digits(rng, 3)),
    ]  # fmt: skip
    frame, value = rng.choice(forms)
    if value.startswith("is "):
        return "the CVV is {} on the back", value[3:]
    return frame, value


# -- texts ---------------------------------------------------------------------------------------

_FRAMES = {
    "EMAIL": ["Write to {} please.", "my email is {}", "It was {} who answered.", "{}",
              "cc {}, ok?", "She uses ({}) now", "mailto:{}", "Contact:{}",
              "Is \"{}\" still yours?",
              "I gave them {} and waited."],
    "PHONE": ["Call me at {}.", "my number is {}", "{} is the dentist", "tel. {}", "Phone: {}",
              "you can text {} anytime", "He wrote {} on a napkin.", "({}) is new",
              "WhatsApp {} 😊", "Ring {}, then hang up", "The clinic's line, {}, was busy."],
    "CARD": ["my card is {}", "Visa {} exp 04/27", "charge {} please", "{}", "card no. {}, thanks",
             "They stored {} without asking.", "I typed {}!"],
    "IBAN": ["my IBAN is {}", "transfer it to {} today", "IBAN: {}", "{}", "account {}, thanks",
             "Rent goes to {} and not elsewhere.", "({})"],
    "ADDRESS": ["I live at {}.", "my new address is {}", "Send it to {}, please.", "We met at {}",
                "{}", "She moved to {} last spring.", "the house, {}, is cold", "Address: {}"],
}  # fmt: skip
_MAKERS = {"EMAIL": email, "PHONE": phone, "CARD": card, "IBAN": iban, "ADDRESS": address}
KINDS = (*_MAKERS, "SECRET", "PERSON")

_INTRODUCTIONS = [
    "My sister {} plays the cello.", "I had lunch with my friend {} again.", "{} is my neighbour.",
    "Dr. {} looked at my knee.", "We named our son {}.", "My boss, {}, is on holiday.",
    "{} said that the train was late.", "I told {} about the job.",
    "{} and my brother went hiking.",
    "Yesterday I met {} at the market.", "My cousin's name is {}.", "{}'s birthday is in June.",
    "I am {}, by the way.", "{} called me last night.", "I love how {} cooks.", "User's aunt is {}",
    "{} works as a nurse.", "Thanks {} for the soup!", "I went to the cinema with {}.",
    "My colleague {} left the company.",
]  # fmt: skip
_MENTIONS = [
    "What did {} say about the trip?", "Did {} like the soup?", "I saw {} at the station.",
    "{} was tired", "Remind me of {}'s birthday.", "Is {} allergic to nuts?", "{}, {}, {}!",
    "That was before {} moved.", "when is {} coming", "Who gave {} the blue scarf?",
    "My present for {} is late.", "Ask {} or wait.", "\"{}\" was on the list.", "It was ({}).",
    "I baked a cake because {} likes it.", "{}: see you at eight", "How old is {} now?",
]  # fmt: skip


def private(seed: int, count: int) -> Iterator[Case]:
    """`count` texts that hold private values, cycling through the kinds."""
    rng = random.Random(seed)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        if kind == "PERSON":
            yield _person(rng)
        elif kind == "SECRET":
            frame, value = secret(rng)
            yield Case(kind, frame.replace("{}", value), (value,))
        else:
            value = _MAKERS[kind](rng)
            yield Case(kind, rng.choice(_FRAMES[kind]).replace("{}", value), (value,))


def _person(rng: random.Random) -> Case:
    first, last = rng.choice(FIRST), rng.choice(LAST)
    whole = f"{first} {last}" if rng.random() < 0.5 else first
    spoken = rng.random() < 0.3
    stored = () if spoken else (rng.choice(_INTRODUCTIONS).replace("{}", whole),)
    said = rng.choice([whole, first, whole.upper(), whole])
    if first not in ("Rose", "Mark", "Will", "Grace", "Hope") and rng.random() < 0.1:
        said = said.lower()
    text = rng.choice(_MENTIONS).replace("{}", said)
    return Case("PERSON", text, (said,), stored, (whole,) if spoken else ())


_PLACES = "Oslo Lisbon Kyoto Vienna Denver Nairobi Prague Montreal Seville Hanoi".split()
_THINGS = ["Blue Heron bakery", "Python", "Toyota", "Netflix", "Spotify", "iPhone", "Lego", "Ikea"]


def ordinary(seed: int, count: int) -> Iterator[Case]:
    """Texts that hold nothing private, many with numbers, capitals and words that may mislead."""
    rng = random.Random(seed)
    for _ in range(count):
        place, thing, n = rng.choice(_PLACES), rng.choice(_THINGS), rng.randint(2, 990)
        day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(1990, 2026)
        frames = [
            f"We moved to {place} in {year}.",
            f"The flight from {place} takes {rng.randint(2, 14)} hours.",
            f"In {place} it rained for {n} days.",
            f"I want to see {place} again next summer.",
            f"The meeting is on {year}-{month:02d}-{day:02d} at {day % 24:02d}:30.",
            f"It was {day:02d}/{month:02d}/{year}, a Monday.",
            f"On {day}.{month:02d}.{year} we signed.",
            f"That costs {n},{rng.randint(100, 999)}.{rng.randint(10, 99)} dollars.",
            f"Order {digits(rng, 12)} has shipped.",
            f"ISBN 978-{rng.randint(0, 9)}-{digits(rng, 4)}-{digits(rng, 4)}-{rng.randint(0, 9)}",
            f"Version {rng.randint(1, 20)}.{rng.randint(0, 30)}.{rng.randint(0, 99)} is out.",
            f"I ran {rng.randint(3, 42)}.{rng.randint(0, 9)} km in {rng.randint(20, 59)} minutes.",
            f"The war lasted from {year - 30} to {year}, {year - 30}-{year} in short.",
            f"We scored {n % 10}-{n % 7} and lost the next {n % 5}-{n % 9}.",
            f"Population: {rng.randint(1, 9)} {digits(rng, 3)} {digits(rng, 3)}.",
            f"The room is {rng.randint(2, 9)} x {rng.randint(2, 9)} m, {n} euros a month.",
            f"My {thing} broke after {n} days.",
            f"I learned {rng.choice(['French', 'Python', 'German', 'Polish'])} in {year}.",
            f"Add {n} g of flour and {rng.randint(1, 9)} eggs.",
            "The password is too long to remember.",
            "I forgot my password again, what a pain.",
            "The secret is patience, my grandmother used to say.",
            "Her token of thanks was a small plant.",
            "The key is under the mat, is it not?",
            "The pin is stuck in the board.",
            "Let us meet at the corner of the park.",
            "He is a street musician and loves the road.",
            f"Page {n} of the book, chapter {n % 30}.",
            f"Flight LH{digits(rng, 4)} leaves from gate B{n % 60}.",
            f"The bus {n} stops here every {n % 30 + 1} minutes.",
            f"I will mark the date and grace the party in {place}.",
            f"We hope that the rose in the {place} garden grows.",
            f"Room {n} on floor {n % 20}, next to the lift.",
            f"{n} people came, {n // 2} of them from {place}.",
            "I like tea, hiking and old films about trains.",
            f"It is {n % 40} degrees in {place}, with {n % 100} % humidity.",
        ]
        stored = (f"I went to {place} last year.", f"I bought the {thing} in {place}.")
        yield Case("ORDINARY", rng.choice(frames), (), stored)
