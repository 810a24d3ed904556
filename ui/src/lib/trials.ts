/** Words for trials. "Trial 7" is the trial with the id 7, which commands take; its number counts within its experiment, from 0. */

interface Named {
  trial_id: number;
  number: number;
}

/** Return id and number of a trial: trial 7 (number 6). */
export const idAndNumber = ({ trial_id, number }: Named): string => `trial ${trial_id} (number ${number})`;
