"""Texts on which a converted model is calibrated and held against its original.

Short and long, speech, prose, steps, code, tables, other scripts, oddities: what memories
hold. Every second one is for calibration, the rest only for the comparison. Changing the texts
changes the bytes, and so the fingerprint, of every model that is optimised afterwards.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PROBE_TEXTS", "calibration_texts", "unseen_texts"]

_SHORT: Final = (
    "Where do I live now?",
    "hello",
    "I moved to Lisbon in May and still commute to the office twice a week.",
    "Thanks!",
    "What did my sister say about the wedding date?",
    "ok, see you at 7:45 pm",
    "My flight is LH1172, seat 14C, and it lands in Porto at 21:05 local time.",
    "",
    "The invoice number is 2024-00731 and the total comes to 1,499.00 EUR including VAT.",
    "No.",
    "She is allergic to penicillin, walnuts and, since last winter, to shellfish.",
    "?!",
    "due October 15th",
    "due October 16th",
    "not due October 15th",
    "400 EUR",
    "Remind me to water the plants every Tuesday and Friday morning before work.",
    "What is the capital of Australia?",
    "The quarterly review was postponed because the finance team has not closed the books.",
    "I prefer tea to coffee, but in the afternoon I drink neither.",
    "Which of the two proposals did we reject, and for what reason?",
    "Password hint: the street where grandma lived, without vowels.",
    "My son's school starts at 8:10; the bus leaves at 7:32 from the corner of Elm and Third.",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
)
_STEPS: Final = (
    "step 14\naction: go to shelf 3\nobservation: On shelf 3, you see a mug 2 and a plate 1.",
    "step 15\naction: take mug 2 from shelf 3\nobservation: You pick up the mug 2 from shelf 3. "
    "You are carrying: a mug 2.",
    "Tool call search_flights(origin='BER', destination='LIS', date='2026-05-03') returned 3 "
    'results: [{"price": 129.9, "stops": 0}, {"price": 88.0, "stops": 1}, {"price": 240.5, '
    '"stops": 0}]',
    "ERROR 2026-03-11T09:14:55Z worker-7 connection to 10.0.4.17:5432 refused after 3 retries; "
    "backing off for 30 s (attempt 4 of 10)",
    "def area(radius: float) -> float:\n    if radius < 0:\n        raise ValueError('negative')\n"
    "    return 3.14159 * radius ** 2",
    "SELECT customer_id, SUM(amount) AS total FROM orders WHERE placed_at >= '2026-01-01' GROUP "
    "BY customer_id HAVING total > 1000 ORDER BY total DESC LIMIT 20;",
    "| item | count | price |\n|---|---|---|\n| apples | 12 | 3.40 |\n| bread | 2 | 5.10 |\n| "
    "olive oil | 1 | 11.95 |",
    "In the room you see a red key, a green box, a blue ball and a closed yellow door. You are "
    "facing north. The goal is to put the ball next to the box, then open the door.",
    "https://example.org/reports/2026/q1?format=pdf&lang=en#section-4.2",
    "git commit -m 'Fix off-by-one in pagination' && git push origin feature/pagination",
)
_SCRIPTS: Final = (
    "Ich wohne seit drei Jahren in München, arbeite aber meistens von zu Hause aus.",
    "¿Dónde dejaste las llaves del coche? Creo que están encima de la mesa de la cocina.",
    "Je ne mange plus de viande depuis janvier, sauf quand ma grand-mère cuisine.",
    "私は来週の火曜日に大阪へ出張します。",
    "我下个月要搬到上海去, 因为公司在那边开了新的办公室。",
    "Завтра у меня встреча с врачом в половине девятого утра.",
    "أحب القهوة في الصباح ولكن بدون سكر.",
    "मुझे अगले महीने दिल्ली जाना है।",
    "Let's celebrate 🎉🎂 on Saturday 👍🏽 if the weather holds ☀️",
    "naïve café façade – “quoted” … déjà vu, 25 °C, ½ price, 3 × 4 = 12, x² ≥ 0",
)
_LONG: Final = (
    "For the trip in September we compared three routes. The first goes by night train through "
    "Vienna and arrives on Sunday morning, which leaves a whole day before the conference but "
    "costs an extra hotel night. The second is a morning flight with a change in Zurich; it is the "
    "cheapest, yet the connection is only thirty-five minutes and luggage was lost there last "
    "year. The third is driving, about nine hours with breaks, and it would let us take the "
    "display boards along instead of shipping them. In the end we booked the train for both of "
    "us, cabin 42, berths 21 and 23, and shipped the boards ahead to the venue's loading dock.",
    "The recipe takes about two hours, most of it waiting. Whisk 500 g of flour with 10 g of salt "
    "and 7 g of dried yeast, add 350 ml of lukewarm water and two spoons of olive oil, and knead "
    "until the dough is smooth. Let it rise, covered, for an hour. Meanwhile slice two onions very "
    "thinly and cook them slowly with a pinch of sugar until they are golden, not brown. Press the "
    "dough into a tray, spread the onions over it, scatter olives and thyme, rest it for another "
    "twenty minutes and bake at 220 degrees for about twenty-five minutes. It tastes best lukewarm "
    "and keeps for two days in a cloth bag.",
    "Minutes of the meeting. Present: the project lead, two engineers, the designer, and a guest "
    "from support. 1. The release is moved from the 12th to the 19th because the migration of the "
    "billing tables needs a dry run on a copy of production. 2. Support reports eleven tickets "
    "about slow exports; nine of them come from accounts with more than fifty thousand rows, so "
    "exports above that size will be queued and mailed as a link. 3. The designer showed the new "
    "settings page. It was agreed to drop the third column, to keep the search box, and to write "
    "the help texts anew in plain words. 4. Nobody objected to removing the beta banner. 5. Open "
    "point: who answers the security questionnaire of the customer in Oslo, due by the end of the "
    "month. The lead takes it if no one else volunteers by Thursday.",
    "A neural network layer multiplies its input by a matrix and adds a bias. When the numbers are "
    "stored in eight bits, a product of two matrices can be summed in thirty-two-bit integers "
    "without error, and only the conversion from floating point and back loses precision. The loss "
    "is small where all channels of the input have a similar range. It is large where a few "
    "channels are a hundred times greater than the rest, since one scale has to serve them all, "
    "and the small ones then fall on a handful of levels. Dividing each channel of the input by a "
    "factor and multiplying the matching row of the matrix by the same factor changes nothing in "
    "exact arithmetic, but it moves the difficulty from the activations, which share one scale, to "
    "the weights, which have one scale for each column.",
    "My grandmother kept a notebook in which she wrote down, every evening, the weather, what she "
    "had cooked, and who had called. There are forty-one of them. The first entries are short: "
    "rain, soup, nobody. Later they grow, and in the summer of 1978, when the roof was being "
    "repaired, they run over several pages a day, with sketches of beams and the carpenter's "
    "prices, which she thought outrageous. She never wrote about feelings, but one can tell a good "
    "day by the handwriting. I have typed up about a third of them so far. My cousin in Halifax "
    "wants copies of the years 1961 to 1964, because her mother lived in the house then, and I "
    "promised to have them scanned before Christmas.",
    "User asked to cancel the subscription but keep the data until the end of the billing period. "
    "I explained that the plan stays active through the 30th, that exports remain possible for "
    "sixty days after that, and that the account is then deleted. They asked whether shared "
    "folders would vanish for their colleagues too. They do not: ownership passes to the oldest "
    "member. They were satisfied, asked for a written confirmation, and mentioned that they may "
    "come back in spring when their new project starts. Follow up in March with the annual offer; "
    "do not call, they prefer e-mail, and not on Mondays.",
)

PROBE_TEXTS: Final = (
    *_SHORT,
    *_STEPS,
    *_SCRIPTS,
    *_LONG,
    *(f"{first}\n{second}" for first, second in zip(_SHORT[::2], _SHORT[1::2], strict=True)),
    *(f"{first}\n\n{second}" for first, second in zip(_LONG, _LONG[1:], strict=False)),
    "\n".join(_STEPS * 3),
    "\n".join(_SCRIPTS * 3),
)


def calibration_texts() -> tuple[str, ...]:
    """Texts whose activations decide the smoothing."""
    return PROBE_TEXTS[::2]


def unseen_texts() -> tuple[str, ...]:
    """Texts that calibration does not see."""
    return PROBE_TEXTS[1::2]
