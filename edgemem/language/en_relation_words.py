"""The words and patterns by which English says who is what to whom.

A table of verbs, and lists for what no grammar tells: kin, animals, jobs, illnesses. Knows words
alone; `en_relations` reads a fact with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgemem.language.en import CAPITAL, NUMBER_WORDS
from edgemem.results import EntityType, Label

__all__ = [
    "CAP",
    "DATE",
    "DETERMINER",
    "DIET",
    "DWELLING",
    "EVENT",
    "ILLNESS",
    "JOB",
    "NAME",
    "NAMES",
    "NO_JOB",
    "NO_TARGET",
    "OWNED",
    "PET",
    "PHRASE",
    "PLACE",
    "ROLE",
    "RULES",
    "SCHOOL",
    "TEAM",
    "TOGETHER",
    "VERB",
    "WORKPLACE",
    "Rule",
    "role_label",
]


def _any(text: str) -> str:
    """Alternatives of a regular expression, the longest first; _ is a space."""
    return "(?:" + "|".join(sorted(text.split(), key=len, reverse=True)).replace("_", " ") + ")"


# -- names and phrases -----------------------------------------------------------------------

CAP = rf"{CAPITAL}(?:['’](?!s\b)\w+|[\w-])*"
"""A word with a capital, in any script."""
_TITLE = r"(?:(?:Mr|Mrs|Ms|Miss|Dr|Prof|Professor|Madame|Sir|Father|Sister|Nurse)\.? )?"
_BETWEEN = r"(?:(?:de|da|van|von|der|la|al|bin|of|upon|del|le) )*"
_NO_NAME = _any(
    "The A An If When While After Before In On At Since Because Nothing Nobody No Some Half There "
    "This That It He She They His Her Their Both As Every Each For Although One Two"
)
NAME = rf"(?!{_NO_NAME}\b){_TITLE}{CAP}(?: {_BETWEEN}{CAP})*"
NAMES = rf"{NAME}(?:(?:, {NAME})*,? and {NAME})?"
PLACE = rf"(?:the )?(?P<np>{CAP}(?:['’]s(?= [A-Z]))?(?: {_BETWEEN}{CAP})*)(?![\w-]|['’])"
_MONTH = _any(
    "January February March April May June July August September October November December"
)
_WEEKDAY = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?"
DATE = (
    rf"(?:(?:{_WEEKDAY} )?\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}(?: \d{{4}})?|"
    rf"{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?\b(?:,? \d{{4}})?|{_MONTH}(?: \d{{4}})?|{_WEEKDAY}|"
    r"(?:19|20)\d\d)\b"
)
DETERMINER = r"(?:an?|the|his|her|their|its|some|both|all|another)"
# A noun phrase ends before any of these.
_ENDS = _any(
    """and or but nor because since as so if unless who whom whose which that when while where
    whereas with without for from at in on to into onto by after before until till during about
    around near over under behind beside between through against than then now again too also
    instead though although however every each last next this these today yesterday tomorrow
    tonight once twice ago online daily weekly only just still already is are was were be been
    being has have had does do did will would can could may might must should called named known
    he she they it him them her his their its no not never none nothing any anything neither
    everything something someone anyone there here how what why more most much very per outside
    inside off up down out away back together alone via like himself herself themselves
    better best"""
)
_WORD = rf"(?!{_ENDS}\b)[\w&][\w&'’+.-]*"
PHRASE = rf"{_WORD}(?: (?:of (?:the |an? )?)?{_WORD}){{0,6}}(?![\w:])"
_NOUN = rf"(?:{DETERMINER} )*(?:(?:own|old|new|brand-new) )?(?P<np>{PHRASE})"
_HERE = rf"(?=$|[,;]| {_ENDS}\b)"  # a phrase ends
_BARE = rf"(?P<np>(?!(?:{DETERMINER}|with|for|in) ){PHRASE})"
_COUNT = rf"(?:\d+|{'|'.join(NUMBER_WORDS)})"
NO_TARGET = re.compile(
    r"(?:mistake|decision|reservation|booking|complaint|donation|call|peace|friends|plans?|appointment|speech|offer|money|progress|sure|living|job|"
    r"[\d.,]+|[A-Z][^ ]*['’]s .*|part|fuss|difference|effort|role|idea|problem|lot|bit|promise|"
    r"point|choice|time|letters?)s?"
)
"""What is "made" or "owned" in a manner of speaking."""

# -- people and animals ----------------------------------------------------------------------

_ROLES: dict[Label, str] = {
    "relative_of": _any(
        """grand(?:mother|father|ma|pa|dad|mum|son|daughter|child|children|parents?) gran granny
        nan nana grandad cousins? aunts? aunties? uncles? nieces? nephews? (?:great-)?(?:aunt|uncle)
        god(?:mother|father|son|daughter|child)
        (?:mother|father|sister|brother|son|daughter)s?-in-law"""
    ),
    "parent_of": _any(
        """sons? daughters? child children kids? twins baby toddler eldest youngest
        (?:baby_)?boy girl"""
    ),
    "child_of": _any("mother father mum mom dad parents? mam mama mamma mummy papa amma baba"),
    "sibling_of": _any("sisters? brothers? siblings? twin"),
    "married_to": _any("wife husband spouse missus"),
    "partner_of": _any("partner boyfriend girlfriend"),
    "engaged_to": _any("fiancée? fiancee?"),
    "friend_of": _any("friends? mates? buddy pal bestie"),
    "colleague_of": _any(
        "colleagues? co-?workers? workmates? boss(?:es)? manager supervisor teammates?"
    ),
    "neighbour_of": _any("neighbou?rs?"),
    "other": _any(
        """flatmates? housemates? roommates? landlord landlady tenants? lodger teacher tutor coach
        trainer doctor dentist therapist physio midwife classmates? mentor pupil student"""
    ),
}
ROLE = (
    rf"(?:(?:step|half-|ex-)?(?:{'|'.join(_ROLES.values())}))"
    r"(?! (?:brother|sister|boy|girl|son|daughter|mate)s?\b)"  # "twin brother"
)
PET = (
    r"(?:guinea pigs?|pigs?|"
    + _any(
        """dogs? cats? pupp(?:y|ies) kittens? rabbits? bunny hamsters? gerbils? parrots?
        budg(?:ies?|erigars?) canar(?:y|ies) cockatiels? cockatoos? goldfish horses? pon(?:y|ies)
        donkeys? goats? tortoises? turtles? terrapins? snakes? pythons? geckos? lizards? iguanas?
        ferrets? hens? chickens? ducks? geese cockerel spaniels? labradors? retrievers? terriers?
        greyhounds? whippets? lurchers? collies? poodles? dachshunds? beagles? husk(?:y|ies)
        corgis? mongrels? pugs? alsatians? setters? chihuahuas? tabb(?:y|ies) chinchillas?
        sheepdogs? bulldogs? schnauzers? dalmatians? mare foal parakeets? macaws? rats? mice"""
    )[3:]
)


_NEW_PARTNER = re.compile(r"(?:(?:new|long-term|current|civil|life) )?partner")


def role_label(role: str) -> Label:
    """What somebody with this role is to the one whose they are."""
    if role.endswith("partner") and not _NEW_PARTNER.fullmatch(role):
        return "other"  # for dancing, or in business
    word = re.sub(r"^(?:step|half-|ex-)", "", role.split()[-1], flags=re.I)
    fitting = (label for label, form in _ROLES.items() if re.fullmatch(form, word, re.I))
    return next(fitting, "other")


# -- kinds of things -------------------------------------------------------------------------

SCHOOL = re.compile(
    r".*\b(?:school|college|university|academy|kindergarten|conservato(?:ry|ire)|institute|"
    r"polytechnic|nursery|faculty)\b.*",
    re.I,
)
TEAM = re.compile(
    r".*\b(?:choir|club|band|team|orchestra|society|association|group|troupe|ensemble|quartet|"
    r"league|crew|squad|committee|union|chorus|dojo|gym|trio|circle|party|board)\b.*",
    re.I,
)
WORKPLACE = re.compile(
    rf"{SCHOOL.pattern}|{TEAM.pattern}|"
    r".*\b(?:hotel|hospital|clinic|surgery|practice|\w*shop|store|supermarket|bakery|caf[ée]|"
    r"restaurant|pub|bar|brewery|factory|mill|farm|company|firm|agency|bank|office|library|museum|"
    r"gallery|theatre|cinema|station|council|authority|lab|laboratory|studio|garage|foundry|press|"
    r"charity|shelter|rescue|church|pharmacy|cent(?:re|er)|house|salon|kitchen|"
    r"(?:care|nursing|retirement) home|warehouse|airport|port|zoo|stables|vineyard|winery|"
    r"ministry|department|start-?up|shipyard|newspaper|"
    r"magazine|nursery|garden|depot|plant|court|prison|embassy|works|dairy|hostel|abattoir|"
    r"call centre|harbou?r|yard|site|publisher|market|stall|ward|hospice|barracks|"
    r"quarry|mine|service|brigade|police|army|navy)",
    re.I,
)
DWELLING = _any(
    "flat house apartment room cottage place studio bungalow home cabin village suburb caravan hut "
    "boat"
)
EVENT = r"(?:(?!(?:is|was) )[\w'’-]+ ){0,4}?" + _any(
    """concert wedding anniversary party exam test interview appointment surgery operation meeting
    match race festival trip flight lesson class course conference evening recital funeral
    graduation reunion exhibition marathon tournament competition fair hearing ceremony check-up
    scan rehearsal premiere launch performance show quiz retreat workshop final audition
    christening baptism viewing assembly gig opening seminar lecture open_day championship
    triathlon regatta parade barbecue picnic procedure camp sale fête dinner convention talk
    half-marathon hackathon Run Marathon Festival group tour screening shift inspection move"""
)
JOB = re.compile(
    r"(?:[\w&'’-]+ ){0,3}?(?:\w*[a-z]{2}(?:er|or|ist|ian|eer|man|woman|smith|wright|keeper)|"
    + _any(
        """nurse chef cook pilot vet judge clerk guard coach architect accountant assistant surgeon
        mechanic paramedic barista consultant apprentice intern physio GP carer trainee lifeguard
        courier analyst nanny midwife farmhand chaplain priest monk nun guide model sergeant
        detective attendant dramaturg au_pair civil_servant agent host mason stonemason policeman
        registrar merchant scribe radiologist butcher mountain_guide potter merchant"""
    )
    + ")",
    re.I,
)
NO_JOB = re.compile(
    r"(?:.*\b(?:member|teenager|beginner|lover|supporter|believer|sister|brother|mother|father|"
    r"daughter|partner|neighbou?r|former|single|only|early|stranger|foreigner|pescatarian|"
    r"vegetarian|flexitarian|loner|winner|survivor|newcomer|smoker|drinker|sleeper|learner|swimmer|"
    r"follower|listener|donor|pensioner|would-be|person|talker|eater|owner|lawmaker|number|"
    r"keen|avid|amateur|passionate|younger|older|elder|better|fan|father-to-be|godmother|walker|"
    r"riser|asthmatic|widower|disaster)\b.*|(?:ex-|retired).*)",
    re.I,
)
DIET = "(?:vegan|vegetarian|pescatarian|flexitarian|teetotal)"
ILLNESS = (
    r"(?:(?!(?:an?|the|his|her|their|and) )[\w'’-]+ ){0,2}?"
    + _any(
        """\\w+(?:itis|osis|[ae]emia|algia|plegia) asthma diabetes migraines? hay_fever epilepsy
    depression anxiety blood_pressure ADHD autism dys(?:lexia|calculia|praxia) eczema tinnitus
    insomnia cancer disease syndrome vertigo glaucoma cataracts? gout lupus sciatica rosacea
    dementia OCD PTSD COPD (?:Parkinson|Alzheimer|Crohn)['’]s(?:_disease)? angina apno?ea disorder
    hernia cholesterol thyroid reflux vitiligo pneumonia flu intolerance murmur stammer concussion
    chickenpox shingles heart_condition (?:back|knee|neck|joint)_pain"""
    )
    + r"(?! to\b)"
)
_AILING = (
    "(?:coeliac|celiac|diabetic|asthmatic|epileptic|dyslexic|autistic|ana?emic|colou?r-?blind|"
    "short-sighted|(?:lactose|gluten)[- ]intolerant|deaf|blind|hard of hearing)"
)
_MEDICINE = (
    r"(?!(?:wine|line|time|fine|machine|magazine|routine|medicine|someone|phone|alone|part|train|in|"
    r"again|cabin|pain|basin|coffee|tone|stone|turpentine|ballet)s?\b)"
    r"(?:(?:blood pressure|iron|vitamin|thyroid|sleeping|allergy|water|heart|fish oil) )?"
    r"(?:vitamin [A-Z]\d*|\w*(?:pril|sartan|statins?|xaban|zole|pam|lam|cillin|mycin|profen|"
    r"phen|pram|min|lin|line|zine|xine|tine|pine|olol|onide|rine|pirin|idate|codeine|terol|tamol|done|sone|solone|mide|zide|gliptin|"
    r"pentin|gabalin|toin|farin|parin|oxin|tan|thium|phine)|pills?|tablets?|insulin|inhaler|HRT|steroids|"
    r"anti(?:depressants?|biotics|histamines?)|beta blockers|painkillers|supplements|"
    r"probiotics)"
)
_SPORT = (
    r"(?:"
    + _any(
        """yoga pilates tai_chi qigong judo karate taekwondo aikido jiu-jitsu kendo archery
        gymnastics ballet meditation parkour calligraphy origami capoeira crossfit zumba falconry
        athletics
        [\\w-]*(?:swim|climb|runn|row|cycl|sail|surf|ski|skat|danc|hik|kayak|walk|knitt|boulder)\\w*ing
        (?:box|fenc|paint|bird|jogg|sew|carv|garden|wrestl|forag|div|weav|paddl)\\w*ing"""
    )
    + ")"
)
OWNED = (
    rf"(?P<np>(?:{_WORD} ){{0,4}}?"
    + _any(
        """car van boat narrowboat caravan motorbike motorcycle bike bicycle scooter moped house
        flat cottage cabin allotment piano guitar violin cello clock campervan camper tractor loom
        sauna telescope camera workshop farm \\w*shop café vineyard orchard chalet yacht dinghy
        kayak canoe tandem typewriter holiday_home beach_hut kiln greenhouse apartment e-bike drone
        lorry truck jeep bakery brewery restaurant pub smallholding"""
    )
    + rf"|(?:[a-z]+ )?{CAP}(?: {CAP})+){_HERE}"
)


# -- what a verb says ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """A verb and what its object is to its subject. The group `np` of the form is the target."""

    label: Label
    type: EntityType
    verb: str
    form: re.Pattern[str]


def _present(found: re.Match[str]) -> str:
    """live, lives, is living, has lived, has been living."""
    verb = found[1]
    y = re.fullmatch(r"(\w+[^aeiou])y", verb)
    es = "ies" if y else "es" if verb.endswith(("s", "sh", "ch", "o")) else "s"
    stem = verb.removesuffix("e")
    if re.fullmatch(r"\w{0,2}[^aeiou][aeiou][bdgmnprt]", verb):
        stem += verb[-1]  # planning
    past = f"{y[1]}ied" if y else f"{stem}ed"
    third = (y[1] if y else verb) + es
    return (
        rf"(?:{verb}|{third}|(?:is|are|has been|have been) {stem}ing|"
        rf"(?:has|have) (?:always )?{past})"
    )


def _rule(label: Label, type: EntityType, verb: str, target: str = _NOUN) -> Rule:
    """verb: <live> stands for the present of a verb, <+joined> for its past (alternatives with |),
    BE and HAVE for their present; ~ for up to three words."""
    verb = re.sub(r"<(\w+)>", _present, verb)
    verb = re.sub(r"<\+([\w|]+)>", r"(?:(?:has|have) )?(?:just |recently |finally )?(?:\1)", verb)
    verb = verb.replace("BE", "(?:is|are)").replace("HAVE", "(?:has|have)(?: got)?")
    verb = verb.replace("~", r"(?: [\w'’-]+){0,3}?")
    return Rule(label, type, verb, re.compile(f"{verb} {target}"))


_A_FLAT = rf"(?: (?:an?|the|their) [^,A-Z]*?{DWELLING}[^,A-Z]*? (?:in|near|on|of|outside))?"
_JOB_AT = (
    r"(?:an?|the|his|her|their)~ (?:job|post|position|apprenticeship|internship|traineeship|"
    r"placement)"
)
_AS_A = r"(?: as (?:an?|the) [\w -]+?)?"
_WAS = "(?:was|were|has been|have been)"
_SOMEBODY = f"(?:an? [^,]+? called )?(?P<np>{NAME})"
_BECAME = r"(?:BE(?: now)?|(?:has|have) (?:always )?been|became|turned|went|<+become>)"

RULES: tuple[Rule, ...] = (
    _rule("lives_in", "place", rf"<live>(?:~| with [^,]+?) (?:in|on|at){_A_FLAT}", PLACE),
    _rule("lives_in", "place", rf"<+moved|emigrated|relocated|settled>(?: back| over| out| down| "
          rf"up)?(?: from [^,]+? to| to| in){_A_FLAT}", PLACE),
    _rule("lives_in", "place", rf"(?:<share>|<rent>)(?: with \w+)?{_A_FLAT[:-1]}", PLACE),
    _rule("lives_in", "place",
          "(?:BE (?:now )?(?:based|at home)|<+moved> in with [^,]+?) in", PLACE),
    _rule("works_as", "activity", "(?:(?:<work>|(?:started|began) work(?:ing)?)~ as|"
          "(?:was|got|has been) promoted to|<+qualified|retrained> as)"),
    _rule("works_as", "activity", f"(?:HAVE|<+got|found|taken|took|landed>) {_JOB_AT} as"),
    _rule("works_at", "organisation", f"(?:<work>~|(?:started|began)(?: work(?:ing)?)?){_AS_A} "
          "(?:at|for|in|on)"),
    _rule("works_at", "organisation", f"(?:HAVE|<+got|found|taken|took|landed|started>) {_JOB_AT}"
          f"{_AS_A} (?:at|with|in)"),
    _rule("works_at", "organisation", "<+moved|relocated|emigrated> .*? for "
          f"{_JOB_AT} (?:at|with)"),
    _rule("works_at", "organisation", "(?:(?:<teach>|<share> an office|BE employed)~ "
          "(?:at|by)|(?:was|got|has been) hired by)"),
    _rule("studies", "activity", "(?:<study>|(?:BE (?:doing|studying for)|<+started|began>) an? "
          "(?:degree|PhD|master['’]s) in|"
          "(?:got into|started at|got a place at|goes to) .*? to study)"),
    _rule("studies_at", "organisation", "(?:<study>~ at|<+got|gotten> (?:into|a place at)|"
          "BE (?:an? )?(?:[\\w-]+ )*(?:student|pupil|undergraduate)s? at|"
          "BE (?:taking|doing) an? [\\w -]+? at|BE in (?:his|her|their) \\w+ year at)"),
    _rule("studies_at", "organisation", "(?:(?:goes|go) to|<attend>|<+started>(?: at)?|"
          "<+enrolled|transferred|switched> (?:at|to|in)|"
          "BE (?:now )?at)"),
    _rule("member_of", "organisation", f"(?:{_BECAME} (?:an? |the )?(?:[\\w-]+ )?members? of|"
          "BE on the (?:committee|board) of|<belong> to|<+joined>|<+signed> for)"),
    _rule("member_of", "organisation", "(?:BE(?: now)?|(?:has|have) been) in"),
    _rule("member_of", "organisation", "(?:<sing>|<dance>|<play>|<row>|<swim>|"
          "<drum>|<train>|<practise>|<practice>|<sing>|<compete>)~ (?:in|with|for|at)"),
    _rule("volunteers_at", "organisation", "(?:<volunteer>|<help>(?: out)?|BE an? volunteer)~"
          f"{_AS_A} (?:at|for|with|in)"),
    _rule("born_in", "place", f"(?:was|were) born (?:(?:on|in) {DATE} )?in", PLACE),
    _rule("born_on", "date",
          rf"(?:was|were) born(?: in {PLACE.replace('?P<np>', '?:')})? (?:on|in)",
          f"(?:the )?(?P<np>{DATE})"),
    _rule("comes_from", "place", "(?:comes?|BE) (?:originally )?from",
          rf"(?:an? )?(?P<np>(?:[\w-]+ (?:near|in|outside) )?{CAP}(?: {_BETWEEN}{CAP})*)"),
    _rule("visited", "place", "(?:<+went|gone|been|flew|flown|drove|driven|travelled|traveled>"
          "(?: on [\\w ]+?)?(?: back)? to|<+took|taken> an?~ trip to|<+went> \\w+ing in)", PLACE),
    _rule("visited", "place", "(?:was|were) in", rf"{PLACE}(?= (?:last|for|over|in {_MONTH}))"),
    _rule("visited", "place", "<+visited>",
          rf"(?:the )?(?P<np>(?:[a-z][\w-]* (?:at|in|of) )?{CAP}(?: {_BETWEEN}{CAP})*)"),
    _rule("visited", "place", "(?:<+spent>~ in|(?:(?:BE|<+got|came>)(?: just)? back|"
          "<+returned>) from)", PLACE),
    _rule("plans_to_visit", "place", "(?:BE (?:going|flying|travelling|traveling|driving|off)|"
          "(?:will|<plan> to|<intend> to|BE going to) (?:go|fly|travel|drive))(?: back)?(?: on "
          "[\\w ]+?)? to", PLACE),
    _rule("plans_to_visit", "place", "(?:(?:<+booked>|<plan>) (?:an?|the|flights?|tickets?|some)~|"
          "HAVE (?:an?|the)? ?(?:flights?|tickets?|trip|holiday)~) (?:to|in)", PLACE),
    _rule("plans_to_visit", "place", "(?:<plan> to|<intend> to|will|BE going to|BE) "
          "(?:visit|visiting|spend [\\w ]+? in)", PLACE),
    _rule("plans_to_visit", "place", "(?:go|goes|fly|flies|travels?)(?: back)? to",
          rf"{PLACE}(?= (?:(?:in|on) (?:the )?(?:\d|{_MONTH})|next|over|for) ?)"),
    _rule("has_pet", "pet", "(?:HAVE|(?:has|have) had|<+adopted|rescued|got|bought>|<own>|<keep>|"
          "<live>~ with)",
          rf"(?:(?:an?|the|his|her|their|and) )?(?:old |new )?"
          rf"(?P<np>(?:(?!(?:an?|the|of) )[\w-]+ ){{0,3}}?{PET}){_HERE}"),
    _rule("owns", "thing", "(?:<own>|<co-own>|<+inherited|opened>)"),
    _rule("owns", "thing", "(?:HAVE|<+got>|(?:was|were) given) (?:an?|the|his|her|their)"
          "(?: old| new)?", OWNED),
    _rule("drives", "thing", "<drive>",
          rf"(?:an?|the|his|her|their) (?:(?:old|new) )?(?P<np>{PHRASE})(?! to\b)"),
    _rule("likes", "thing", "(?:<like>|<love>|<enjoy>|<adore>|<prefer>|BE (?:very )?"
          "(?:fond of|keen on|into|(?:mad|crazy) about|an? (?:\\w+ )?fan of|obsessed with))"),
    _rule("likes", "organisation", "<support>", PLACE),
    _rule("dislikes", "thing", "(?:<hate>|<dislike>|<loathe>|<detest>|"
          "can(?:['’]t|not) (?:stand|bear))"),
    _rule("allergic_to", "thing", r"(?:(?:BE )?(?:\w+ly |very )?allergic|"
          r"HAVE an? (?:\w+ )?allergy) to"),
    _rule("allergic_to", "thing", "HAVE an?(?: severe| bad| mild| serious)?",
          r"(?P<np>[\w-]+(?: [\w-]+)?) allergy"),
    _rule("has_condition", "thing", f"(?:HAVE(?: had)?|<suffer> from|<live> with|{_WAS} diagnosed "
          "with)(?: an?)?(?: severe| mild| bad| chronic)?", rf"(?P<np>{ILLNESS})(?![\w-])"),
    _rule("has_condition", "thing", f"(?:<suffer> from|{_WAS} diagnosed with)",
          rf"(?!chronic|severe|mild|bad\b){_NOUN}"),
    _rule("has_condition", "thing", "BE(?: an?)?", rf"(?P<np>{_AILING})(?![\w-])"),
    _rule("takes_medicine", "thing", f"(?:<take>|BE on|{_WAS} prescribed|"
          "(?:switched|changed)(?: from [^ ]+)? to|"
          "(?:has )?started(?: taking| on)?|<use>)(?: (?:an?|his|her|their|\\w+|[\\d.]+ ?(?:mg|"
          "milligrams?|micrograms|units)(?: of)?))??", rf"(?P<np>{_MEDICINE})(?![\w-])"),
    _rule("follows_diet", "thing", rf"{_BECAME}(?: an?)?(?: strict(?:ly)?)?", rf"(?P<np>{DIET})\b"),
    _rule("follows_diet", "thing", "(?:<follow>|BE on|<keep> to|<stick> to|<+started>) (?:an?|the)"
          "(?: strict)?", r"(?P<np>[\w-]+(?: [\w-]+)? diet)"),
    _rule("follows_diet", "thing", "(?:<eat>|<keep>)(?: only| strictly)?",
          r"(?P<np>halal|kosher|vegan|vegetarian|gluten-free|plant-based)\b"),
    _rule("plays", "thing", "(?:<play>|<practise>|<practice>)", rf"(?:the|an?) (?P<np>{PHRASE})"),
    _rule("plays", "activity", "<play>", rf"{_BARE}(?! for (?:the )?[A-Z])"),
    _rule("practises", "activity", r"(?:does|do|BE doing|goes|go|took up|has taken up|<+started>)",
          rf"(?P<np>{_SPORT})(?![\w-])"),
    _rule("practises", "activity", "(?:<practise>|<practice>|took up|has taken up)", _BARE),
    _rule("learns", "thing", "(?:<learn>|<+started> learning)(?: to play)?"),
    _rule("learns", "thing", "(?:<take>|HAVE|BE having|<+started|began>)(?: weekly| private)?",
          r"(?P<np>(?!(?:an?|the|his|her|their|some)\b)[\w-]+(?: [\w-]+)?) (?:lessons|classes)"),
    _rule("learns", "activity", "(?:<take>|<do>|<+started>) (?:an?|the)",
          r"(?P<np>[\w-]+(?: [\w-]+)?) course"),
    _rule("speaks", "thing", "<know>(?: some| a little)?",
          r"(?P<np>[A-Z]\w+(?:ish|ese|ian|ic|ew|ench|eek)|Latin|Hindi|Urdu|Dutch|Welsh)\b"),
    _rule("speaks", "thing", "(?:<speak>|BE fluent in)",
          r"(?:fluent |some |good |a little |a bit of )?(?P<np>[A-Z]\w+(?: Sign Language)?)"),
    _rule("attends", "event", "(?:<attend>|<+attended|ran|completed|went>(?: to)?|(?:goes|go) to|"
          "BE (?:going to|running)|<take> part in|took part in|(?:has )?signed up for|<do>)",
          rf"(?:an?|the|his|her|their) (?P<np>{EVENT}(?: (?:on|about|for|of) (?!(?:{DATE}|the)\b)"
          r"[a-z][\w-]*(?= in [A-Z]| at |$))?)(?=$|[ ,])"),
    _rule("bought", "thing", r"<+bought>(?: (?:his|her|their) \w+(?= an? )|"
          rf" {NAME}| (?:them|her|him)(?:self|selves)?)?"),
    _rule("made", "thing", "<+made|built|knitted|sewed|sewn|wrote|written|carved|baked|crocheted|"
          "designed|composed|wove|woven|welded|embroidered>(?: (?:User['’]s|them|him|her))?"),
    _rule("made", "thing", "<+painted|drew|drawn|published|recorded>", rf"an? (?P<np>{PHRASE})"),
    _rule("aged", "thing", "(?:BE(?: now)?|<+turned>)",
          rf"(?P<np>(?:\d+|{_COUNT}(?:-{_COUNT})?)(?: (?:years|months|weeks)(?= old))?)"
          r"(?=$|,| (?:years )?old| and | this | in | on | last )"),
    _rule("married_to", "person", "(?:(?:BE|has been|got) married to|<+married>)", _SOMEBODY),
    _rule("engaged_to", "person", "(?:(?:BE|got) engaged|<+proposed>) to", _SOMEBODY),
    _rule("partner_of", "person", "(?:(?:BE(?: now)?|has been) (?:dating|seeing|going out with|"
          "(?:in a relationship|together) with)|<+got> together with)", _SOMEBODY),
    _rule("friend_of", "person", "(?:BE|became|has been) (?:\\w+ )?friends with", _SOMEBODY),
    _rule("colleague_of", "person", "<work>(?: closely)? with", rf"{_SOMEBODY}(?=$| at )"),
    _rule("neighbour_of", "person", "<live> next door to", _SOMEBODY),
)  # fmt: skip

VERB = re.compile("|".join(rule.verb for rule in RULES))
"""The beginning of what a rule may fit."""

_ARE = "(?:are|have been|became|got) (?:[a-z]+ )?"
TOGETHER: tuple[tuple[Label, re.Pattern[str]], ...] = (
    ("married_to", re.compile(r"(?:(?:are|got|have been) married|married)\b(?! to)")),
    ("engaged_to", re.compile("(?:are|got) (?:engaged|getting married)")),
    ("partner_of", re.compile("(?:are (?:dating|a couple)|have been (?:together|dating))")),
    ("friend_of", re.compile(rf"{_ARE}friends\b")),
    ("sibling_of", re.compile(rf"{_ARE}(?:siblings|brothers|sisters|twins)\b")),
    ("relative_of", re.compile(rf"{_ARE}cousins\b")),
    ("colleague_of", re.compile(rf"(?:{_ARE}colleagues|work together|share an office)\b")),
    ("neighbour_of", re.compile(rf"{_ARE}neighbou?rs\b")),
)  # fmt: skip
"""What two people are to each other: "Ana and Joel are married"."""
