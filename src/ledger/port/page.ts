/** Newest first: rows with an id below `before`. */
export interface Page {
  limit: number;
  before: string | null;
}
