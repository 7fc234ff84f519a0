"""D4RL's mazes on their grid, and shortest paths between their cells; without physics.

Ball (`maze2d`) and ant (`antmaze`) walk in the same mazes, with a goal, a scale and a time limit of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

Cell = tuple[int, int]
"""Row and column."""

_MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))  # among equally short paths, the earlier move wins


@dataclass(frozen=True)
class Maze:
    """A maze on a grid.

    Attributes:
        rows: One letter per cell: # is a wall, G the goal of the ball, O any other open cell.
        limit: Steps per episode of the ball.
    """

    rows: tuple[str, ...]
    limit: int

    def where(self, letters: str) -> tuple[Cell, ...]:
        """Cells with one of these letters, row by row."""
        return tuple((i, j) for i, row in enumerate(self.rows) for j, letter in enumerate(row) if letter in letters)

    @cached_property
    def open_cells(self) -> tuple[Cell, ...]:
        """All cells but the walls."""
        return self.where("OG")

    @cached_property
    def goal(self) -> Cell:
        """The goal cell of the ball."""
        return self.where("G")[0]

    @classmethod
    def named(cls, size: str) -> Maze:
        """Look a maze up by its size."""
        if size not in MAZES:
            raise ValueError(f"size: expected one of {', '.join(MAZES)}, got {size!r}")
        return MAZES[size]


MAZES = {
    "umaze": Maze(("#####", "#GOO#", "###O#", "#OOO#", "#####"), 300),
    "medium": Maze(
        ("########", "#OO##OO#", "#OO#OOO#", "##OOO###", "#OO#OOO#", "#O#OO#O#", "#OOO#OG#", "########"), 600
    ),
    "large": Maze(
        (
            "############",
            "#OOOO#OOOOO#",
            "#O##O#O#O#O#",
            "#OOOOOO#OOO#",
            "#O####O###O#",
            "#OO#O#OOOOO#",
            "##O#O#O#O###",
            "#OO#OOO#OGO#",
            "############",
        ),
        800,
    ),
}


class Routes:
    """Shortest paths between the open cells of a maze.

    D4RL plans by value iteration. With a discounted reward at the goal only, its values decrease with the length of the
    path, so the paths are the same.

    Args:
        maze: The maze.

    >>> Routes(Maze.named("umaze")).path((1, 1), (2, 3))
    [(1, 2), (1, 3), (2, 3)]
    """

    def __init__(self, maze: Maze) -> None:
        """Compute the lengths of all paths."""
        self._lengths = {goal: _lengths(maze, goal) for goal in maze.open_cells}

    def __contains__(self, cell: object) -> bool:
        """Whether a cell is open."""
        return cell in self._lengths

    def following(self, here: Cell, goal: Cell) -> Cell:
        """The cell after `here` on the way to the goal; the goal itself once it is reached."""
        if here == goal:
            return goal
        lengths = self._lengths[goal]
        return min((cell for cell in _neighbours(here) if cell in lengths), key=lengths.__getitem__)

    def path(self, here: Cell, goal: Cell) -> list[Cell]:
        """Cells after `here` up to the goal, or the goal alone."""
        path = [self.following(here, goal)]
        while path[-1] != goal:
            path.append(self.following(path[-1], goal))
        return path


def _neighbours(cell: Cell) -> list[Cell]:
    return [(cell[0] + di, cell[1] + dj) for di, dj in _MOVES]


def _lengths(maze: Maze, goal: Cell) -> dict[Cell, int]:
    """Number of moves from each open cell to the goal, by breadth-first search."""
    lengths, reached = {goal: 0}, [goal]
    open_cells = set(maze.open_cells)
    for cell in reached:  # the list grows during the loop
        for neighbour in _neighbours(cell):
            if neighbour in open_cells and neighbour not in lengths:
                lengths[neighbour] = lengths[cell] + 1
                reached.append(neighbour)
    return lengths
