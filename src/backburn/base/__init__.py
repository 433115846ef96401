"""The bottom layer: errors, dtypes, trees and scoped settings. Imports nothing else of backburn."""
