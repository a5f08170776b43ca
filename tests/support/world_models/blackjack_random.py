# ruff: noqa
import random


class Environment:
    def __init__(self):
        self.deck = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10]
        self.player_sum = 0
        self.dealer_card = 0
        self.usable_ace = 0

    def set_state(self, state):
        self.player_sum, self.dealer_card, self.usable_ace = state

    def draw_card(self):
        return random.choice(self.deck)

    def step(self, action):
        if action == 1:
            card = self.draw_card()
            if card == 1 and self.player_sum + 11 <= 21:
                self.player_sum += 11
                self.usable_ace = 1
            else:
                self.player_sum += card
            if self.player_sum > 21 and self.usable_ace:
                self.player_sum -= 10
                self.usable_ace = 0
            done = self.player_sum > 21
            reward = -1.0 if done else 0.0
        else:
            done = True
            dealer = [self.dealer_card]
            while sum(dealer) < 17:
                dealer.append(self.draw_card())
                if 1 in dealer and sum(dealer) + 10 <= 21 and sum(dealer) + 10 >= 17:
                    break
            total = sum(dealer)
            if 1 in dealer and total + 10 <= 21:
                total += 10
            reward = (
                1.0
                if total > 21 or total < self.player_sum
                else (-1.0 if total > self.player_sum else 0.0)
            )
        return (self.player_sum, self.dealer_card, self.usable_ace), reward, done
