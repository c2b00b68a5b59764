"""The repository of Strands' tests is Turnstone."""

import atexit

import opened
import tests.fixtures.mock_session_repository as mocked

from turnstonedb.strands import TurnstoneRepository


class Repository(TurnstoneRepository):
    def __init__(self) -> None:
        client = opened.client()
        super().__init__(client.__enter__())
        atexit.register(client.__exit__, None, None, None)


mocked.MockedSessionRepository = Repository
