class Solution:
    def fewestCells(self, kinds: List[int], volts: int) -> int:
        