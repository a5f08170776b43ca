class Solution:
    def slots(self, booked: List[List[int]], length: int) -> List[List[int]]:
        