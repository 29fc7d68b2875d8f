"""Made-up people, for questions whose answers stand in the prompt and nowhere else."""

FIRST = (
    "Ada Alan Barbara Claude Dennis Donald Edsger Emmy Erna Frances Fred Grace Hedy Ida Ivan James "
    "Jean John Juris Kathleen Ken Kurt Leslie Lynn Margaret Marvin Mary Maurice Niklaus Noam Ole "
    "Peter Radia Richard Robin Ronald Ruth Shafi Silvio Sophie Stephen Tim Tony Vint Whitfield"
).split()
LAST = (
    "Abbott Baker Carver Dalton Ellis Fisher Garner Harper Ingram Jensen Keller Lambert Mercer "
    "Norris Osborn Palmer Quincy Ramsey Sawyer Turner Upton Vance Walker Yates Zimmer Archer "
    "Bishop Cooper Draper Emerson Forester Glover Hunter Irving Jarvis Kirby Lawson Mason Nolan "
    "Parker Rhodes Shepherd Tanner Underhill Vaughn Weaver Wright Young Barlow Chandler"
).split()
CITIES = (
    "Aarhus Bergen Cordoba Dresden Evora Florence Ghent Haarlem Innsbruck Jerez Krakow Lisbon "
    "Malmo Nantes Odense Porto Rouen Salzburg Toledo Uppsala Verona Wroclaw York Zagreb"
).split()
TRADES = (
    "beekeeper bookbinder carpenter clockmaker cook glassblower goldsmith joiner locksmith miller "
    "painter potter printer saddler sailmaker shipwright stonemason tailor tinsmith violinist"
).split()
SUBJECTS = (
    "algebra anatomy astronomy botany chemistry drawing geology geometry grammar history law logic "
    "medicine music optics philosophy physics rhetoric surveying zoology"
).split()
QUESTIONS = {
    "city": "In which city was {} born?",
    "trade": "What was the trade of {}'s mother?",
    "subject": "Which subject did {} study?",
    "year": "In which year did {} move to {}?",
}


class Person:
    def __init__(self, rng, name, teacher):
        self.name, self.teacher = name, teacher
        self.city, self.home = rng.sample(CITIES, 2)
        self.trade, self.subject = rng.choice(TRADES), rng.choice(SUBJECTS)
        self.year = rng.randrange(1700, 1990)
        self.age = rng.randrange(41, 95)

    def text(self):
        return (
            f"{self.name} was born in {self.city}, the only child of a {self.trade} who had come "
            f"there for work. {self.name} studied {self.subject} with {self.teacher}, moved to "
            f"{self.home} in {self.year}, and lived there to the age of {self.age}."
        )

    def question(self, rng):
        """(question, answer) about this paragraph."""
        kind = rng.choice(sorted(QUESTIONS))
        return QUESTIONS[kind].format(self.name, self.home), str(getattr(self, kind))


def crowd(rng, count):
    """So many people; each one's teacher is another of them."""
    pairs = rng.sample(range(len(FIRST) * len(LAST)), count)
    names = [f"{FIRST[p % len(FIRST)]} {LAST[p // len(FIRST)]}" for p in pairs]
    teachers = names[1:] + names[:1]
    return [Person(rng, name, teacher) for name, teacher in zip(names, teachers)]
