"""A manual and a goal of Read to Fight Monsters, and an exact program for the game."""

DRAGON, DEMON, AXE, BOW = "cold dragon", "fire demon", "shimmering axe", "grandmasters bow"

MANUAL = (
    "shimmering beat cold. grandmasters beat fire. blessed beat lightning. gleaming beat poison. "
    "dragon are order of the forest. demon are rebel enclave. jinn are star alliance."
)

GOAL = "defeat the order of the forest"

PROGRAM = '''
MOVES = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
PLACES = [(row, column) for row in range(6) for column in range(6)]

class Environment:
    """Uses only the manual in its observation."""

    def set_state(self, observation):
        board, self.held, *self.told = observation
        self.words = {(row, column): board[row][column][0] for row, column in PLACES}
        manual, goal = self.told or TOLD
        facts = [fact.split(" ", 2) for fact in manual[:-1].split(". ")]
        self.beating = {of: who for who, verb, of in facts if verb == "beat"}
        members = {of: who for who, verb, of in facts if verb == "are"}
        self.target = members[goal.removeprefix("defeat the ")]

    def step(self, action):
        here = next((place for place in PLACES if self.words[place] == "you"), None)
        if here:
            self.enter(here, (here[0] + MOVES[action][0], here[1] + MOVES[action][1]))
        foes = [word for word in self.words.values() if word.split()[0] in self.beating]
        here = next((place for place in PLACES if self.words[place] == "you"), None)
        over = here is None or len(foes) < 2
        won = here is not None and not any(self.target in foe for foe in foes)
        board = tuple(
            tuple((self.words[row, column], "empty") for column in range(6)) for row in range(6)
        )
        seen = (board, self.held, *self.told)
        return seen, (1 if won else -1) if over else 0, over, self.valid(here)

    def enter(self, here, there):
        word = self.words[there]
        kind = word.split()[0]
        if kind in ("wall", "you"):
            return
        self.words[here] = "empty"
        if kind in self.beating and self.held.split()[0] != self.beating[kind]:
            return
        if kind not in self.beating and kind != "empty":
            self.held = word
        self.words[there] = "you"

    def valid(self, here):
        if here is None:
            return range(5)
        ahead = [(here[0] + row, here[1] + column) for row, column in MOVES]
        return [action for action in range(5) if self.words[ahead[action]] != "wall"]
'''
